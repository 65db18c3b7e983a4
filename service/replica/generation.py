"""Pauses and sleep of one replica, as an ingress orders them. `core.py` carries them out in the engine's process."""

from __future__ import annotations

import asyncio
import time

from service.errors import MrpServeError
from service.messages.replica_status import GenerationResult, GenerationState
from service.replica.messages import SetGeneration
from service.replica.remote import EngineProcessClient
from service.replica.weight_update import WeightUpdater
from service.tracebacks import unexpected_error


class GenerationControl:
    """Makes the replica pause, continue, sleep or wake up. `state`: its present state.

    `changing`: the lock that weight updates take, too: changes of a replica come one after the other.
    """

    def __init__(
        self, replica: str, engine: EngineProcessClient, weights: WeightUpdater, changing: asyncio.Lock
    ) -> None:
        self.state = GenerationState()
        self._replica, self._engine, self._weights, self._changing = replica, engine, weights, changing
        self._tasks: set[asyncio.Task[GenerationResult]] = set()

    async def set(self, state: GenerationState, *, wait: bool) -> GenerationResult:
        """Takes a state, unless it has a newer one. `wait`: running requests finish before a pause.

        A change goes on if the caller leaves.
        """
        task = asyncio.create_task(self._set(state, wait=wait))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(task)

    async def _set(self, state: GenerationState, *, wait: bool) -> GenerationResult:
        error: MrpServeError | None = None
        began = time.monotonic()
        try:
            async with self._changing:
                if self.state.older_than(state):
                    folders = self._weights.card.weights.all_folders
                    await self._engine.set_generation(SetGeneration(state.paused, state.sleep_level, wait, folders))
                    self.state = state
        except MrpServeError as problem:
            error = problem
        except Exception as problem:  # noqa: BLE001 - Serve would log the whole traceback
            error = unexpected_error(problem, "")
        return GenerationResult(self._replica, self.state, time.monotonic() - began, error)
