"""Engines that wait, fail or are late as a test says. Their dependencies have a runner that does so."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

from service.decode.policy import Prediction
from service.engine import EngineDeps
from service.engine.forward.rows import Row
from service.engine.forward.runner import CheckpointRunner
from tests.clock import Clock
from tests.engine.helpers import FAIR
from tests.gateway.helpers import eventually
from tests.runners import Around


class EngineGate:
    """A gate before each forward of an engine, closed at first. `deps`: the dependencies of such an engine."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._left, self._forwards, self._waits = 0, 0, False
        self.deps = over_runners(lambda runner: _GatedRunner(runner, self))

    def let(self, forwards: int) -> None:
        """Allows `forwards` more forwards."""
        with self._changed:
            self._left += forwards
            self._changed.notify()

    def release(self) -> None:
        """Opens the gate for good."""
        self.let(sys.maxsize)

    async def holds(self, before: int = 1) -> None:
        """Returns when the engine waits before the forward with that number."""
        await eventually(lambda: self._waits_before(before))

    def _waits_before(self, number: int) -> bool:
        with self._changed:
            return self._waits and self._forwards == number

    def wait_for_forward(self) -> None:
        """Called on the engine's thread, before a forward."""
        with self._changed:
            self._forwards, self._waits = self._forwards + 1, True
            assert self._changed.wait_for(lambda: self._left > 0, 20)
            self._left, self._waits = self._left - 1, False


class _GatedRunner(Around):
    def __init__(self, runner: CheckpointRunner, gate: EngineGate) -> None:
        super().__init__(runner)
        self.gate = gate

    def evaluate(self, rows: Sequence[Row]) -> list[Prediction]:
        self.gate.wait_for_forward()
        return super().evaluate(rows)


class _FailingRunner(Around):
    def __init__(self, runner: CheckpointRunner, after: int, saying: str) -> None:
        super().__init__(runner)
        self.left, self.saying = after, saying

    def evaluate(self, rows: Sequence[Row]) -> list[Prediction]:
        if not self.left:
            raise ZeroDivisionError(self.saying)
        self.left -= 1
        return super().evaluate(rows)


class _LateRunner(Around):
    def __init__(self, runner: CheckpointRunner, after: int, clock: Clock) -> None:
        super().__init__(runner)
        self.left, self.clock = after, clock

    def evaluate(self, rows: Sequence[Row]) -> list[Prediction]:
        readings = super().evaluate(rows)
        self.left -= 1
        if not self.left:
            self.clock.now = 3600.0
        return readings


def over_runners(make: Callable[[CheckpointRunner], Around], clock: Clock | None = None) -> EngineDeps:
    """EngineDeps of an engine with a runner that `make` wraps around the real one."""
    clocks: dict[str, Any] = {"clock": clock} if clock else {}
    return EngineDeps(**clocks, costs=FAIR, runner=lambda *arguments: make(CheckpointRunner(*arguments)))


def failing(after: int, saying: str = "a bug") -> EngineDeps:
    """The engine fails after `count` forwards, with an error that has a message."""
    return over_runners(lambda runner: _FailingRunner(runner, after, saying))


def an_hour_passes(after: int) -> EngineDeps:
    """No time passes for the engine during the first forwards; after them an hour passes at once."""
    clock = Clock()
    return over_runners(lambda runner: _LateRunner(runner, after, clock), clock)
