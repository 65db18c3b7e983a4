"""Weight updates of a replica: new weights are checked, loaded beside the served ones, applied when no request runs.

The replica keeps the tokenizer, chat template and limits of the checkpoint that it started with.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

from msgspec import structs

from service.errors import CheckpointError, MrpServeError, SettingsError, WeightsBehind, WeightsRefused
from service.messages.replica_status import ModelCard, WeightUpdateResult
from service.messages.wire import ReplicaRequest, Weights
from service.quality.presets import presets_of
from service.replica.remote import EngineProcessClient
from service.settings.settings import Settings
from service.tracebacks import unexpected_error


class WeightUpdater:
    """Updates the weights of one replica. `card`: the card of the replica, with the weights that it serves.

    `changing`: the lock of changes of this replica, which come one after the other.
    """

    def __init__(
        self, replica: str, card: ModelCard, engine: EngineProcessClient, settings: Settings, changing: asyncio.Lock
    ) -> None:
        self.card = card
        self._replica, self._engine = replica, engine
        self._quality_file = settings.quality_file
        self._changing = changing
        self._tasks: set[asyncio.Task[WeightUpdateResult]] = set()

    def admit(self, request: ReplicaRequest) -> None:
        """WeightsBehind if the served weights are older than the request allows."""
        served, oldest = self.card.weights, request.weights
        if oldest is not None and served.older_than(oldest):
            raise WeightsBehind(
                f"this replica has weights of version {served.version}, allowed are {oldest.version} and later",
                retry_after=1.0,
            )

    async def check(self, weights: Weights) -> WeightUpdateResult:
        """Whether the replica could serve the weights. Changes nothing.

        The result has the weights with the folders that are still needed, and with MRP's version.
        """
        return await self._result(self._check(weights))

    async def _check(self, weights: Weights) -> Weights:
        folders, has_mrp = await self._engine.check_weights(weights.all_folders, is_partial=weights.partial)
        mrp_version = weights.version if has_mrp else weights.mrp_version
        return structs.replace(weights, folders=folders, mrp_version=mrp_version)

    async def update(self, weights: Weights) -> WeightUpdateResult:
        """Serves the weights from now on, unless it serves newer ones. An update goes on if the caller leaves."""
        task = asyncio.create_task(self._result(self._update(weights)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(task)

    async def _update(self, weights: Weights) -> Weights:
        async with self._changing:
            if self.card.weights.older_than(weights):
                newest_only = _follows(weights, self.card.weights)
                path = await self._engine.load_weights(weights.all_folders, newest_only=newest_only)
                info = self._engine.info
                presets = presets_of(path, info.config, self._quality_file, info.activation_parts)
                await self._engine.apply_weights((weights.version, weights.mrp_version), abort=weights.abort)
                self.card = replace(self.card, weights=weights, quality=presets)
        return self.card.weights

    async def _result(self, work: Coroutine[Any, Any, Weights]) -> WeightUpdateResult:
        """The result of a check or an update, and its duration. If it fails, the result has the served weights."""
        weights: Weights | None = None
        error: MrpServeError | None = None
        began = time.monotonic()
        try:
            weights = await work
        except (CheckpointError, SettingsError) as problem:
            error = WeightsRefused(f"{problem.message}; the old weights stay", param="model")
        except MrpServeError as problem:
            error = problem
        except Exception as problem:  # noqa: BLE001 - Serve would log the whole traceback
            error = unexpected_error(problem, "")
        return WeightUpdateResult(self._replica, weights or self.card.weights, time.monotonic() - began, error)


def _follows(weights: Weights, served: Weights) -> bool:
    """Whether only the newest folder of `weights` differs from the served weights.

    Its other folders are then served folders in the same order. Folders between them are overlaid by the newest one.
    """
    *earlier, _ = weights.all_folders
    served_folders = iter(served.all_folders)
    return bool(earlier) and all(folder in served_folders for folder in earlier)
