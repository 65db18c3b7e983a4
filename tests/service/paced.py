"""A replica of the model that decodes at the pace that a test sets."""

import asyncio
import time
from typing import Any

from service.rayserve.deployments import GeneratorDeployment
from service.settings.settings import Settings
from tests.service.pace import HOLD, current_pace, write_card

_POLL_S = 0.01


class PacedGenerator(GeneratorDeployment):
    """Looks before it starts, and its runner before every forward."""

    deps = "tests.service.paced:DEPS"

    async def __init__(self, settings: Settings) -> None:  # type: ignore[misc]  # Serve awaits it
        while current_pace() == HOLD:
            await asyncio.sleep(_POLL_S)
        await super().__init__(settings)
        write_card((await self.status()).replica)


def _paced(*arguments: Any) -> Any:
    """A runner; torch is imported in the processes that make one only."""
    from service.engine.forward.runner import CheckpointRunner
    from tests.runners import RunnerWrapper

    class Paced(RunnerWrapper):
        def evaluate(self, rows: Any) -> Any:
            while (pace := current_pace()) == HOLD:
                time.sleep(_POLL_S)
            time.sleep(float(pace or 0))
            return super().evaluate(rows)

    return Paced(CheckpointRunner(*arguments))


def __getattr__(name: str) -> Any:
    """`DEPS`, made in the engine's process alone: Serve's processes import this module, too, and no torch."""
    if name != "DEPS":
        raise AttributeError(name)
    from service.engine import EngineDeps

    return EngineDeps(runner=_paced)
