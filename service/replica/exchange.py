"""New weights in the place of those that a replica serves: checked, read beside them, taken when no request runs.

Tokenizer, chat template and limits stay those of the checkpoint that the replica started with.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from typing import Any

from service.engine import EngineWorker
from service.engine.parts import Ranks
from service.errors import CheckpointError, MrpServeError, SettingsError, WeightsBehind, WeightsRefused
from service.model import Checkpoint, LoadOptions
from service.model.exchange import check, fetch, take
from service.quality.presets import Presets, presets_of
from service.settings import Settings
from service.telemetry.faults import unexpected_error
from service.wire import Exchanged, ModelCard, Weights, Work


class Source:
    """Where weights for a checkpoint come from. `ranks`: other processes that hold parts of it. All methods block."""

    def __init__(self, checkpoint: Checkpoint, settings: Settings, ranks: Ranks | None) -> None:
        self._checkpoint, self._ranks, self._quality_file = checkpoint, ranks, settings.quality_file
        self._options = LoadOptions(
            checkpoint.dtype,
            "cpu",
            settings.block_size,
            mrp_residual=settings.mrp_residual,
            mrp_scale=settings.mrp_scale,
            quantization=settings.quantization,
            shard=checkpoint.shard,
        )

    def check(self, model: str) -> None:
        """Raises what `service.model.exchange.check` raises."""
        check(model, self._checkpoint.config, self._options)

    def fetch(self, model: str) -> tuple[Callable[[], None], Presets]:
        """Reads weights. Returns what puts them in the place of the served ones, and their presets."""
        config, ranks = self._checkpoint.config, self._ranks
        if ranks is None:
            fresh = fetch(model, config, self._options)
            return partial(take, self._checkpoint, fresh), presets_of(fresh.path, config, self._quality_file)
        fresh = ranks.fetch(model, self._options)
        return partial(ranks.take, fresh), presets_of(fresh.path, config, self._quality_file)


class Exchange:
    """Exchanges the weights of one replica. `card`: the replica's, with the weights that answer.

    `cut`: requests that run when weights are taken are ended; else they finish first.
    """

    def __init__(self, replica: str, card: ModelCard, source: Source, worker: EngineWorker, *, cut: bool) -> None:
        self.card = card
        self._replica, self._source, self._worker, self._cut = replica, source, worker, cut
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
        return await self._told(asyncio.to_thread(self._source.check, weights.model))

    async def to(self, weights: Weights) -> Exchanged:
        """Takes weights, unless newer ones answer. The caller may leave: what is begun is finished."""
        task = asyncio.create_task(self._told(self._to(weights)))
        self._begun.add(task)
        task.add_done_callback(self._begun.discard)
        return await asyncio.shield(task)

    async def _to(self, weights: Weights) -> None:
        async with self._one:
            if self.card.weights.behind(weights):
                take_them, presets = await asyncio.to_thread(self._source.fetch, weights.model)
                await self._worker.exchange(take_them, weights.version, cut=self._cut)
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
