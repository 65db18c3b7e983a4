"""Engines that wait, fail or are late as a test says. Their dependencies have a runner that does so."""

import itertools
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

from service.decode.policy import Prediction
from service.engine import EngineDeps
from service.engine.forward.rows import Row
from service.engine.forward.runner import ModelRunner
from tests.clock import Clock
from tests.engine.helpers import CHEAP_ROWS
from tests.gateway.helpers import eventually
from tests.runners import RunnerWrapper


class EngineGate:
    """A gate before each forward of an engine, closed at first. `deps`: the dependencies of such an engine."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._left, self._forwards, self._waits = 0, 0, False
        self.deps = hooked(before=self._wait)

    def let(self, forwards: int) -> None:
        with self._changed:
            self._left += forwards
            self._changed.notify()

    def release(self) -> None:
        self.let(sys.maxsize)

    async def holds(self, before: int = 1) -> None:
        """Returns when the engine waits before the forward with that number."""
        await eventually(lambda: self._waits_before(before))

    def _waits_before(self, number: int) -> bool:
        with self._changed:
            return self._waits and self._forwards == number

    def _wait(self) -> None:
        with self._changed:
            self._forwards, self._waits = self._forwards + 1, True
            assert self._changed.wait_for(lambda: self._left > 0, 120)
            self._left, self._waits = self._left - 1, False


class _HookedRunner(RunnerWrapper):
    """Calls `before` and `after` around each forward of the backbone."""

    def __init__(
        self, runner: ModelRunner, before: Callable[[], None] | None = None, after: Callable[[], None] | None = None
    ) -> None:
        super().__init__(runner)
        self._before, self._after = before, after

    def evaluate(self, rows: Sequence[Row]) -> list[Prediction]:
        if self._before:
            self._before()
        predictions = super().evaluate(rows)
        if self._after:
            self._after()
        return predictions


def hooked(clock: Clock | None = None, **hooks: Callable[[], None]) -> EngineDeps:
    """EngineDeps of an engine whose forwards have hooks, `before` or `after`."""
    clocks: dict[str, Any] = {"clock": clock} if clock else {}
    return EngineDeps(
        **clocks, costs=CHEAP_ROWS, runner=lambda *arguments: _HookedRunner(ModelRunner(*arguments), **hooks)
    )


def failing(after: int, message: str = "a bug") -> EngineDeps:
    """The engine fails after some forwards, with an error that has a message."""
    forwards = itertools.count()

    def fail() -> None:
        if next(forwards) >= after:
            raise ZeroDivisionError(message)

    return hooked(before=fail)


def an_hour_passes(after: int) -> EngineDeps:
    """No time passes for the engine during the first forwards; after them an hour passes at once."""
    clock, forwards = Clock(), itertools.count(1)

    def pass_an_hour() -> None:
        if next(forwards) == after:
            clock.now = 3600.0

    return hooked(clock, after=pass_an_hour)
