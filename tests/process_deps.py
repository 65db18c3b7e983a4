"""EngineDeps of engines in processes of their own, which import them by `module:name`."""

import time
from functools import partial
from typing import Any

from service.engine import EngineDeps
from service.engine.forward.runner import ModelRunner
from tests.engine.helpers import CHEAP_ROWS
from tests.runners import RunnerWrapper


class Failing(RunnerWrapper):
    """Fails in its first forward."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(ModelRunner(*arguments))

    def evaluate(self, rows: Any) -> Any:
        raise ZeroDivisionError(len(rows))


class Hanging(RunnerWrapper):
    """After `left` forwards one takes a minute."""

    def __init__(self, left: int, *arguments: Any) -> None:
        super().__init__(ModelRunner(*arguments))
        self.left = left

    def evaluate(self, rows: Any) -> Any:
        if not self.left:
            time.sleep(60)
        self.left -= 1
        return super().evaluate(rows)


UNMEASURED = EngineDeps(costs=CHEAP_ROWS)
FAILING = EngineDeps(costs=CHEAP_ROWS, runner=Failing)
HANGING = EngineDeps(costs=CHEAP_ROWS, runner=partial(Hanging, 0))
HANGING_LATER = EngineDeps(costs=CHEAP_ROWS, runner=partial(Hanging, 40))


def path_of(deps: str) -> str:
    """The path by which a replica imports dependencies of this module."""
    return f"{__name__}:{deps}"
