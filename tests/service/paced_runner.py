"""The dependencies of an engine whose runner looks at the pace of a test before every forward."""

import time
from typing import Any

from service.engine import EngineDeps
from service.engine.forward.runner import ModelRunner
from tests.runners import RunnerWrapper
from tests.service.pace import HOLD, POLL_S, current_pace


class Paced(RunnerWrapper):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(ModelRunner(*arguments))

    def evaluate(self, rows: Any) -> Any:
        while (pace := current_pace()) == HOLD:
            time.sleep(POLL_S)
        time.sleep(float(pace or 0))
        return super().evaluate(rows)


DEPS = EngineDeps(runner=Paced)
