"""Engines on a thread of the test's own process."""

from collections.abc import AsyncGenerator

from service.constraints import Constraint
from service.engine import BlockEvent, BlockProgress, EngineState, GenerationRequest
from service.engine_process.core import EngineCore
from service.engine_process.messages import EngineInfo, EngineReply
from service.messages.replica_status import ControlCommand
from tests.async_engine import AsyncEngine


class InProcessEngine:
    """Implements `EngineClient`. It starts at once."""

    def __init__(self, core: EngineCore) -> None:
        self._core = core
        self._engine = AsyncEngine(core.engine, core.room)
        self._engine.start()

    @property
    def info(self) -> EngineInfo:
        return self._core.info

    @property
    def failure(self) -> str | None:
        return self._engine.failure or self._core.failure

    def state(self) -> EngineState:
        return self._engine.state()

    async def generate(
        self, request: GenerationRequest, constraint: Constraint | None = None
    ) -> AsyncGenerator[BlockEvent | BlockProgress]:
        self._core.engine.validate(request)
        if constraint is not None:
            request = await self._core.compiled(request, constraint)
        items = self._engine.generate(request)
        try:
            async for item in items:
                yield item
        finally:
            await items.aclose()

    async def control(self, command: ControlCommand) -> EngineReply:
        weights, pause = await self._core.control(self._engine, command)
        return EngineReply(0, None, weights, pause)

    def close(self) -> None:
        self._engine.stop()
        self._core.close()
