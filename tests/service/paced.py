"""A replica of the model that decodes at the pace that a test sets. Serve's processes import this, and no torch."""

import asyncio

from service.rayserve.deployments import GeneratorDeployment
from service.settings.settings import Settings
from tests.service.pace import HOLD, POLL_S, current_pace, write_card


class PacedGenerator(GeneratorDeployment):
    """Looks before it starts, and its runner before every forward."""

    deps = "tests.service.paced_runner:DEPS"

    async def __init__(self, settings: Settings) -> None:  # type: ignore[misc]  # Serve awaits it
        while current_pace() == HOLD:
            await asyncio.sleep(POLL_S)
        await super().__init__(settings)
        write_card((await self.status()).replica)
