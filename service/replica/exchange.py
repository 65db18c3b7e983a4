"""New weights in the place of those that a replica serves: checked, read beside them, taken when no request runs.

Tokenizer, chat template and limits stay those of the checkpoint that the replica started with.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

from service.errors import CheckpointError, MrpServeError, SettingsError, WeightsBehind, WeightsRefused
from service.quality.presets import presets_of
from service.replica.engines import ReplicaEngine
from service.settings import Settings
from service.telemetry.faults import unexpected_error
from service.wire import Exchanged, ModelCard, Weights, Work


class Exchange:
    """Exchanges the weights of one replica. `card`: the replica's, with the weights that answer.

    The settings say whether requests that run when weights are taken are ended; else they finish first.
    """

    def __init__(self, replica: str, card: ModelCard, engine: ReplicaEngine, settings: Settings) -> None:
        self.card = card
        self._replica, self._engine = replica, engine
        self._cut, self._quality_file = settings.weights_update == "abort", settings.quality_file
        self._one = asyncio.Lock()
        self._begun: set[asyncio.Task[Exchanged]] = set()

    def admit(self, work: Work) -> None:
        """WeightsBehind if the weights are older than may answer."""
        own, oldest = self.card.weights, work.weights
        if oldest is not None and own.behind(oldest):
            raise WeightsBehind(
                f"this replica has weights of version {own.version}, allowed are {oldest.version} and later",
                retry_after=1.0,
            )

    async def check(self, weights: Weights) -> Exchanged:
        """Whether the weights could be taken. Reads configs and headers only."""
        return await self._told(self._engine.check(weights.model))

    async def to(self, weights: Weights) -> Exchanged:
        """Takes weights, unless newer ones answer. The caller may leave: what is begun is finished."""
        task = asyncio.create_task(self._told(self._to(weights)))
        self._begun.add(task)
        task.add_done_callback(self._begun.discard)
        return await asyncio.shield(task)

    async def _to(self, weights: Weights) -> None:
        async with self._one:
            if self.card.weights.behind(weights):
                path = await self._engine.fetch(weights.model)
                presets = presets_of(path, self._engine.served.config, self._quality_file)
                await self._engine.take(weights.version, cut=self._cut)
                self.card = replace(self.card, weights=weights, quality=presets)

    async def _told(self, work: Coroutine[Any, Any, None]) -> Exchanged:
        """What came of it, and how long it took."""
        error: MrpServeError | None = None
        began = time.monotonic()
        try:
            await work
        except (CheckpointError, SettingsError) as problem:
            error = WeightsRefused(f"{problem.message}; the old weights stay", param="model")
        except MrpServeError as problem:
            error = problem
        except Exception as problem:  # noqa: BLE001 - Serve would log the whole traceback
            error = unexpected_error(problem, "")
        return Exchanged(self._replica, self.card.weights, time.monotonic() - began, error)
