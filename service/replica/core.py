"""The core of a replica's engine process: a checkpoint, its engine, grammars of answers, weight updates and sleep."""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

from service.constraints import Constraint, GrammarCompiler, Owner
from service.constraints.vocabulary import TokenVocabulary
from service.engine import Engine, EngineConfig, EngineDeps, GenerationRequest, Observer
from service.engine.memory_plan import MemoryPlan, RequestedSizes, plan_memory
from service.engine.thread import EngineThread
from service.model import Checkpoint, LoadOptions, load_checkpoint
from service.model.config import CheckedUpdate
from service.model.device import is_out_of_memory, memory_of, pick_device, pick_dtype
from service.model.weight_update import apply_update, check_update, drop_weights, load_update, restore_weights
from service.parallel import TensorParallelExecutor
from service.replica.messages import EngineInfo, SetGeneration
from service.settings.settings import Settings, slots_of
from service.text import TextCodec

_log = logging.getLogger(__name__)


class EngineCore:
    """A checkpoint and its engine. `deps`: the engine's dependencies, whose ranks end with it.

    `codec`: loads the tokenizer. `has_weights`: whether the weights have memory. Sleep of level 2 takes it.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        settings: Settings,
        observer: Observer,
        deps: EngineDeps | None = None,
        codec: Callable[[], TextCodec] | None = None,
    ) -> None:
        self.ranks = deps.ranks if deps else None
        limits = _limits(settings, checkpoint, deps)
        self.engine = engine = Engine(checkpoint, limits, observer, deps)
        self.info = EngineInfo(
            str(checkpoint.path),
            checkpoint.config,
            checkpoint.activation_parts,
            engine.max_model_len,
            engine.max_running,
            settings.deterministic,
        )
        # The ingress limits the waiting requests. The engine has room for all that the ingress admits.
        self.room = settings.max_waiting + max(settings.slots, slots_of(engine.max_running))
        load = codec or partial(TextCodec.load, checkpoint.path)
        self.compiler = GrammarCompiler(lambda: TokenVocabulary.for_checkpoint(load(), checkpoint.config))
        self._checkpoint, self._device = checkpoint, checkpoint.device
        self.has_weights = True
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
        """Why the ranks can no longer compute. None while they can."""
        return self.ranks.failure if self.ranks else None

    async def compiled(self, request: GenerationRequest, constraint: Constraint) -> GenerationRequest:
        """The request with the grammar of its answer. Raises the errors of `GrammarCompiler.compile`."""
        began = time.monotonic()
        grammar = await self.compiler.compile(constraint, Owner(request.sharing.tenant, request.sharing.cache_salt))
        return replace(request, grammar=grammar, delay_s=time.monotonic() - began)

    def check_weights(self, folders: Sequence[str], *, is_partial: bool) -> CheckedUpdate:
        """Whether other weights could be loaded. Raises the errors of `model.weight_update.check_update`. Blocks."""
        return check_update(folders, self.info.config, self._options, partial=is_partial)

    def load_weights(self, folders: Sequence[str], *, newest_only: bool) -> tuple[Callable[[], None], Path]:
        """Loads new weights. Returns the function that applies them, and the newest folder. Blocks.

        `newest_only`: only the weights of the last folder, unless the others are not in memory. The function raises
        OutOfMemory if there is no memory for weights that had none.
        """
        newest_only = newest_only and self.has_weights
        if self.ranks is None:
            fresh = load_update(folders, self.info.config, self._options, newest_only=newest_only)
        else:
            fresh = self.ranks.fetch(folders, self._options, newest_only=newest_only)
        return partial(self._apply, fresh), fresh.path

    def _apply(self, fresh: Checkpoint) -> None:
        if not self.has_weights:
            if self.ranks is None:
                restore_weights(self._checkpoint, self._device)
            else:
                self.ranks.restore_weights()
            self.has_weights = True
        if self.ranks is None:
            apply_update(self._checkpoint, fresh)
        else:
            self.ranks.apply(fresh)

    async def set_generation(self, thread: EngineThread, change: SetGeneration) -> None:
        """Pauses or resumes the engine, puts it to sleep or wakes it up. `thread`: the engine's thread.

        Running requests finish before sleep, paused ones included. Waking up reads weights that have no memory from
        their folders. Raises the errors of `EngineThread.run`; CheckpointError if a folder cannot be read. The engine
        then sleeps on.
        """
        engine = self.engine
        if change.paused and (change.wait or not engine.paused):
            await thread.run(engine.pause, when_idle=change.wait)
        if change.sleep_level > engine.sleep_level:
            await thread.run(partial(self._sleep, change.sleep_level), when_idle=True)
        elif not change.sleep_level and engine.sleep_level:
            if not self.has_weights:
                apply, _ = await asyncio.to_thread(self.load_weights, change.folders, newest_only=False)
                await thread.run(apply)
            await thread.run(engine.wake_up)
        if engine.paused and not change.paused:
            await thread.run(engine.resume)

    def _sleep(self, level: int) -> None:
        self.engine.sleep(level)
        if level < 2 or not self.has_weights:
            return
        if self.ranks is None:
            drop_weights(self._checkpoint)
        else:
            self.ranks.drop_weights()
        self.has_weights = False

    def close(self) -> None:
        """Ends its ranks and the threads that compile grammars."""
        if self.ranks:
            self.ranks.close()
        self.compiler.close()


def load_core(
    settings: Settings, observer: Observer, deps: EngineDeps | None = None, codec: Callable[[], TextCodec] | None = None
) -> EngineCore:
    """Loads the checkpoint, on several devices if the settings say so, and prepares its engine.

    Blocks until the weights are read and the costs of forwards are measured. Raises the errors of loading.
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
    deps, ranks = deps or EngineDeps(), settings.tensor_parallel_size
    if ranks == 1:
        return _prepared(EngineCore(load_checkpoint(settings.model, options), settings, observer, deps, codec))
    executor = TensorParallelExecutor(
        ranks, device, timeout_s=settings.stall_timeout_s, deterministic=settings.deterministic
    )
    try:
        checkpoint, deps = executor.load(settings.model, options), replace(deps, ranks=executor)
        return _prepared(EngineCore(checkpoint, settings, observer, deps, codec))
    except BaseException:
        executor.close()
        raise


def _prepared(core: EngineCore) -> EngineCore:
    core.engine.prepare()
    return core


def _limits(settings: Settings, checkpoint: Checkpoint, deps: EngineDeps | None = None) -> EngineConfig:
    """The engine's limits: the settings, or where they are open the largest that fit beside the weights.

    On CUDA the KV cache gets the memory that captured graphs and the largest forward leave. These are tried with a
    small cache first. With several ranks, rank 0 needs the most memory: it alone has the logits.
    """
    memory = deps.ranks.memory() if deps and deps.ranks else memory_of(checkpoint.device)
    sizes = RequestedSizes(
        kv_cache_tokens=_number(settings.kv_cache_tokens),
        max_running=_number(settings.max_running),
        max_rows=_number(settings.max_rows),
        memory_utilization=settings.memory_utilization,
    )
    plan = partial(plan_memory, model=checkpoint.shard_config, itemsize=checkpoint.dtype.itemsize, memory=memory)
    fitted = plan(sizes)
    if sizes.kv_cache_tokens is None and checkpoint.device.type == "cuda":
        rows, measured = _measured(checkpoint, _config(settings, fitted), deps)
        fitted = plan(replace(sizes, max_rows=rows), measured=measured)
    _log.info(
        "KV cache of %d tokens, %d requests, %d rows; forwards and graphs take %.0f MiB",
        fitted.kv_cache_tokens,
        fitted.max_running,
        fitted.max_rows,
        fitted.forward_bytes / 2**20,
    )
    return _config(settings, fitted)


def _measured(checkpoint: Checkpoint, config: EngineConfig, deps: EngineDeps | None) -> tuple[int, int]:
    """The most rows of a forward that the device can compute, and the bytes of all graphs and of such a forward.

    Several ranks cannot go on after a forward without memory. Then the error of the forward is raised.
    """
    size = checkpoint.config.block_size
    tokens = max(2 * size, min(config.kv_cache_tokens // 2, checkpoint.config.max_positions))
    while True:
        try:
            trial = replace(config, kv_cache_tokens=tokens)
            return config.max_rows, Engine(checkpoint, trial, deps=deps).measure_bytes()
        except RuntimeError as error:
            if config.max_rows <= size + 2 or not is_out_of_memory(error):
                raise
        finally:
            gc.collect()  # graphs and networks refer to each other
        config = replace(config, max_rows=max(size + 2, config.max_rows // 2))


def _config(settings: Settings, fitted: MemoryPlan) -> EngineConfig:
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
        torch_profiler_dir=settings.torch_profiler_dir,
    )


def _number(setting: int | Literal["auto"]) -> int | None:
    return None if setting == "auto" else setting
