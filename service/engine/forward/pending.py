"""Forwards that are under way: begun now, read later.

On an asynchronous device a forward computes between the two. A runner that can begin forwards is an `AsyncRunner`. The
forwards of any other runner are done when they have begun (`Immediate`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar, runtime_checkable

from service.decode.policy import Prediction
from service.engine.forward.rows import Row

_T = TypeVar("_T")

#: Waits until a forward is done. Gives a result for every row.
Pending = Callable[[], list[_T]]
#: begins a forward over rows
Beginning = Callable[[Sequence[Row]], Pending[Prediction]]


@runtime_checkable
class AsyncRunner(Protocol):
    """A runner whose forwards can be begun. They are computed in the order in which they are begun."""

    def begin_evaluate(self, rows: Sequence[Row]) -> Pending[Prediction]:
        """Begins a forward of the backbone."""

    def begin_refine(self, rows: Sequence[Row]) -> Pending[Prediction]:
        """Begins a forward of MRP."""


class Forwarding(Protocol):
    """A runner whose forwards return their readings."""

    def evaluate(self, rows: Sequence[Row]) -> list[Prediction]:
        """A forward of the backbone."""

    def refine(self, rows: Sequence[Row]) -> list[Prediction]:
        """A forward of MRP."""


class Immediate:
    """An `AsyncRunner` over any other runner."""

    def __init__(self, runner: Forwarding) -> None:
        self._runner = runner

    def begin_evaluate(self, rows: Sequence[Row]) -> Pending[Prediction]:
        """Computes a forward of the backbone."""
        return done(self._runner.evaluate(rows))

    def begin_refine(self, rows: Sequence[Row]) -> Pending[Prediction]:
        """Computes a forward of MRP."""
        return done(self._runner.refine(rows))


def done(results: list[_T]) -> Pending[_T]:
    """Of a forward that is done."""
    return lambda: results
