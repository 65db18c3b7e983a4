"""What decodes in a replica: a checkpoint, its engine, the grammars of answers, other weights in their place.

It is in the process that computes: the replica's own (`local.py`), or one of its own (`process.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

from service.constraints import GrammarCompiler
from service.constraints.vocabulary import TokenVocabulary
from service.engine import Engine, EngineConfig, Observer, Parts
from service.engine.sizing import Sizes, fit
from service.model import Checkpoint, LoadOptions, load_checkpoint
from service.model.memory import DeviceMemory, memory_of
from service.model.options import pick_device, pick_dtype
from service.model.weight_update import apply_update, check_update, load_update
from service.parallel import Team
from service.replica.engines import Served
from service.settings import Settings, places_of
from service.text import TextCodec

_log = logging.getLogger(__name__)


class Core:
    """A checkpoint and its engine. `parts`: the engine's; their ranks end with it. `codec`: loads the tokenizer."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        settings: Settings,
        observer: Observer,
        parts: Parts | None = None,
        codec: Callable[[], TextCodec] | None = None,
    ) -> None:
        self.ranks = parts.ranks if parts else None
        limits = _limits(settings, checkpoint, self.ranks.memory() if self.ranks else memory_of(checkpoint.device))
        self.engine = engine = Engine(checkpoint, limits, observer, parts)
        self.served = Served(
            checkpoint.path,
            checkpoint.config,
            checkpoint.activation_parts,
            engine.max_model_len,
            engine.max_running,
            settings.deterministic,
        )
        # The ingress limits the waiting requests. The engine has room for all that the ingress admits.
        self.room = settings.max_waiting + max(settings.places, places_of(engine.max_running))
        load = codec or partial(TextCodec.load, checkpoint.path)
        self.compiler = GrammarCompiler(lambda: TokenVocabulary.of(load(), checkpoint.config))
        self._checkpoint = checkpoint
        self._options = LoadOptions(
            checkpoint.dtype,
            "cpu",
            settings.block_size,
            mrp_residual=settings.mrp_residual,
            mrp_scale=settings.mrp_scale,
            quantization=settings.quantization,
            shard=checkpoint.shard,
        )

    @property
    def failure(self) -> str | None:
        """Why its ranks can no longer compute. None while they can."""
        return self.ranks.failure if self.ranks else None

    def check(self, model: str) -> None:
        """Whether other weights could be loaded. Raises what `service.model.weight_update.check_update` raises."""
        check_update(model, self.served.config, self._options)

    def fetch(self, model: str) -> tuple[Callable[[], None], Path]:
        """Reads other weights. Returns what puts them in the place of the served ones, and their folder. Blocks."""
        if self.ranks is None:
            fresh = load_update(model, self.served.config, self._options)
            return partial(apply_update, self._checkpoint, fresh), fresh.path
        fresh = self.ranks.fetch(model, self._options)
        return partial(self.ranks.take, fresh), fresh.path

    def close(self) -> None:
        """Ends its ranks and the threads that compile grammars."""
        if self.ranks:
            self.ranks.close()
        self.compiler.close()


def load_core(
    settings: Settings, observer: Observer, parts: Parts | None = None, codec: Callable[[], TextCodec] | None = None
) -> Core:
    """Loads the checkpoint, on several devices if the settings say so, and prepares its engine.

    Blocks until the weights are read and the costs of forwards are measured. Raises what loading raises.
    """
    device = pick_device(settings.device)
    options = LoadOptions(
        pick_dtype(settings.dtype, device),
        device,
        settings.block_size,
        mrp_residual=settings.mrp_residual,
        mrp_scale=settings.mrp_scale,
        quantization=settings.quantization,
    )
    parts, ranks = parts or Parts(), settings.tensor_parallel_size
    if ranks == 1:
        return _prepared(Core(load_checkpoint(settings.model, options), settings, observer, parts, codec))
    team = Team(ranks, device, timeout_s=settings.stall_timeout_s, deterministic=settings.deterministic)
    try:
        checkpoint, parts = team.load(settings.model, options), replace(parts, ranks=team)
        return _prepared(Core(checkpoint, settings, observer, parts, codec))
    except BaseException:
        team.close()
        raise


def _prepared(core: Core) -> Core:
    core.engine.prepare()
    return core


def _limits(settings: Settings, checkpoint: Checkpoint, memory: DeviceMemory) -> EngineConfig:
    """The engine's limits: what the settings leave open is what fits beside the weights."""
    asked = Sizes(
        kv_cache_tokens=_number(settings.kv_cache_tokens),
        max_running=_number(settings.max_running),
        max_rows=_number(settings.max_rows),
        memory_utilization=settings.memory_utilization,
        cuda_graphs=settings.cuda_graphs == "auto" and checkpoint.shard.size == 1,
    )
    fitted = fit(asked, checkpoint.shard_config, checkpoint.dtype.itemsize, memory)
    _log.info(
        "KV cache of %d tokens, %d requests, %d rows", fitted.kv_cache_tokens, fitted.max_running, fitted.max_rows
    )
    return EngineConfig(
        fitted.max_running,
        fitted.max_rows,
        fitted.kv_cache_tokens,
        settings.max_model_len,
        settings.priority_aging_s,
        prefix_cache=settings.prefix_cache,
        deterministic=settings.deterministic,
        attention=settings.attention,
        cuda_graphs=settings.cuda_graphs == "auto",
        overlap=settings.overlap,
        draft_candidates=settings.draft_candidates,
        max_prefill_tokens=settings.max_prefill_tokens,
    )


def _number(setting: int | Literal["auto"]) -> int | None:
    return None if setting == "auto" else setting
