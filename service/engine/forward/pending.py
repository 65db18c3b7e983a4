"""Forwards that are under way: begun now, read later.

On an asynchronous device a forward computes between the two. A runner that can begin forwards is an `AsyncRunner`. Of
any other runner, `begins` makes forwards that are done when they have begun.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar, runtime_checkable

from service.decode.policy import Reading
from service.engine.forward.rows import Row

_T = TypeVar("_T")

#: Waits until a forward is done. Gives a result for every row.
Pending = Callable[[], list[_T]]
#: begins a forward over rows
Beginning = Callable[[Sequence[Row]], Pending[Reading]]


@runtime_checkable
class AsyncRunner(Protocol):
    """A runner whose forwards can be begun. They are computed in the order in which they are begun."""

    def begin_evaluate(self, rows: Sequence[Row]) -> Pending[Reading]:
        """Begins a forward of the backbone."""

    def begin_refine(self, rows: Sequence[Row]) -> Pending[Reading]:
        """Begins a forward of MRP."""


def begins(forward: Callable[[Sequence[Row]], list[Reading]]) -> Beginning:
    """As `forward`, done when it has begun."""
    return lambda rows: done(forward(rows))


def done(results: list[_T]) -> Pending[_T]:
    """Of a forward that is done."""
    return lambda: results
