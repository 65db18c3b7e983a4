"""Engines on a thread of the test's own process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from functools import partial
from pathlib import Path

from service.constraints import Constraint
from service.engine import AsyncEngine, BlockEvent, BlockProgress, EngineState, GenerationRequest
from service.model.config import CheckedUpdate
from service.replica.core import EngineCore
from service.replica.messages import EngineInfo, SetGeneration
from service.settings.defaults import STEP_TIMEOUT_S


class InProcessEngine:
    """Implements `EngineClient`. It starts at once. A step may take `stall_timeout_s`."""

    def __init__(self, core: EngineCore, stall_timeout_s: float = STEP_TIMEOUT_S) -> None:
        self._core = core
        self._engine = AsyncEngine(core.engine, core.room, stall_timeout_s)
        self._apply: Callable[[], None] | None = None
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

    async def check_weights(self, folders: tuple[str, ...], *, is_partial: bool) -> CheckedUpdate:
        return await asyncio.to_thread(self._core.check_weights, folders, is_partial=is_partial)

    async def load_weights(self, folders: tuple[str, ...], *, newest_only: bool) -> Path:
        load = partial(self._core.load_weights, folders, newest_only=newest_only)
        self._apply, path = await asyncio.to_thread(load)
        return path

    async def apply_weights(self, versions: tuple[int, int], *, abort: bool) -> None:
        assert self._apply is not None
        await self._engine.update_weights(self._apply, versions, cut=abort)

    async def set_generation(self, change: SetGeneration) -> None:
        await self._core.set_generation(self._engine, change)

    def close(self) -> None:
        self._engine.stop()
        self._core.close()
