"""The engine of a replica on a thread of this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from pathlib import Path

from service.constraints import Constraint, Owner
from service.decode.guide import GrammarSource
from service.engine import BlockEvent, BlockProgress, EngineState, EngineWorker, GenerationRequest
from service.replica.core import Core
from service.replica.engines import Served


class LocalEngine:
    """Implements `ReplicaEngine`. It starts at once. A step may take `stall_timeout_s`."""

    def __init__(self, core: Core, stall_timeout_s: float) -> None:
        self._core = core
        self._worker = EngineWorker(core.engine, core.room, stall_timeout_s)
        self._take: Callable[[], None] | None = None
        self._worker.start()

    @property
    def served(self) -> Served:
        """What it serves."""
        return self._core.served

    @property
    def failure(self) -> str | None:
        """Why it cannot decode."""
        return self._worker.failure or self._core.failure

    def state(self) -> EngineState:
        """The state after its last step."""
        return self._worker.state()

    def generate(self, request: GenerationRequest) -> AsyncGenerator[BlockEvent | BlockProgress]:
        """See `EngineWorker.generate`."""
        return self._worker.generate(request)

    async def compile(self, constraint: Constraint, owner: Owner) -> GrammarSource:
        """See `GrammarCompiler.compile`."""
        return await self._core.compiler.compile(constraint, owner)

    async def check(self, model: str) -> None:
        """On another thread, since it reads files."""
        await asyncio.to_thread(self._core.check, model)

    async def fetch(self, model: str) -> Path:
        """On another thread, while the engine goes on."""
        self._take, path = await asyncio.to_thread(self._core.fetch, model)
        return path

    async def take(self, version: int, *, cut: bool) -> None:
        """See `EngineWorker.exchange`."""
        take, self._take = self._take, None
        if take is None:
            raise AssertionError("weights are to be taken before they are fetched")
        await self._worker.exchange(take, version, cut=cut)

    def close(self) -> None:
        """Stops the engine's thread, then the rest."""
        self._worker.stop()
        self._core.close()
