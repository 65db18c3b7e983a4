"""Weight updates of a replica: new weights are checked, read beside the served ones, applied when no request runs.

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
from service.replica.engines import EngineClient
from service.settings import Settings
from service.telemetry.faults import unexpected_error
from service.wire import Exchanged, ModelCard, ReplicaRequest, Weights


class WeightUpdater:
    """Updates the weights of one replica. `card`: the replica's, with the weights that answer.

    The settings say whether requests that run at an update are ended; else they finish first.
    """

    def __init__(self, replica: str, card: ModelCard, engine: EngineClient, settings: Settings) -> None:
        self.card = card
        self._replica, self._engine = replica, engine
        self._cut, self._quality_file = settings.weights_update == "abort", settings.quality_file
        self._updating = asyncio.Lock()
        self._tasks: set[asyncio.Task[Exchanged]] = set()

    def admit(self, request: ReplicaRequest) -> None:
        """WeightsBehind if the weights are older than those that may answer."""
        served, oldest = self.card.weights, request.weights
        if oldest is not None and served.behind(oldest):
            raise WeightsBehind(
                f"this replica has weights of version {served.version}, allowed are {oldest.version} and later",
                retry_after=1.0,
            )

    async def check(self, weights: Weights) -> Exchanged:
        """Whether the replica could take the weights. Reads configs and headers only."""
        return await self._result(self._engine.check(weights.model))

    async def update(self, weights: Weights) -> Exchanged:
        """Takes weights, unless newer ones answer. An update goes on if the caller leaves."""
        task = asyncio.create_task(self._result(self._update(weights)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(task)

    async def _update(self, weights: Weights) -> None:
        async with self._updating:
            if self.card.weights.behind(weights):
                path = await self._engine.fetch(weights.model)
                info = self._engine.info
                presets = presets_of(path, info.config, self._quality_file, info.activation_parts)
                await self._engine.take(weights.version, cut=self._cut)
                self.card = replace(self.card, weights=weights, quality=presets)

    async def _result(self, request: Coroutine[Any, Any, None]) -> Exchanged:
        """The result of a check or an update, and its duration."""
        error: MrpServeError | None = None
        began = time.monotonic()
        try:
            await request
        except (CheckpointError, SettingsError) as problem:
            error = WeightsRefused(f"{problem.message}; the old weights stay", param="model")
        except MrpServeError as problem:
            error = problem
        except Exception as problem:  # noqa: BLE001 - Serve would log the whole traceback
            error = unexpected_error(problem, "")
        return Exchanged(self._replica, self.card.weights, time.monotonic() - began, error)
