"""The core of a replica's engine process: a checkpoint, its engine, grammars of answers, weight updates and sleep."""

import asyncio
import gc
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Literal, cast

from msgspec import structs

from service.constraints import Constraint, Owner
from service.constraints.compiler import GrammarCompiler
from service.constraints.vocabulary import TokenVocabulary
from service.engine import Engine, EngineConfig, EngineDeps, GenerationRequest, Observer
from service.engine.memory_plan import MemoryPlan, RequestedSizes, plan_memory
from service.engine.thread import EngineThread
from service.engine_process.messages import EngineInfo
from service.messages.replica_status import (
    CheckWeights,
    ControlCommand,
    PauseState,
    ResetPrefixCache,
    SetPause,
    UpdateWeights,
)
from service.messages.wire import Weights
from service.model import Checkpoint, LoadOptions, load_checkpoint
from service.model.device import is_out_of_memory, memory_of, pick_device, pick_dtype
from service.model.files import pinned
from service.model.weight_update import apply_update, check_update, drop_weights, load_update, restore_weights
from service.parallel import TensorParallelExecutor
from service.settings.settings import Settings, slots_of, torch_profiler_dir
from service.text import TextCodec

_log = logging.getLogger(__name__)


class EngineCore:
    """A checkpoint and its engine. `deps`: the engine's dependencies, whose ranks end with it.

    `codec`: loads the tokenizer. `weights`: the served weights. `pause`: whether the engine is paused or asleep.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        settings: Settings,
        observer: Observer,
        deps: EngineDeps | None = None,
        codec: Callable[[], TextCodec] | None = None,
    ) -> None:
        deps = deps or EngineDeps()
        self.ranks = _ranks_of(deps)
        limits = _limits(settings, checkpoint, deps)
        self.engine = engine = Engine(checkpoint, limits, observer, deps)
        self.info = EngineInfo(
            folder=str(checkpoint.path),
            config=checkpoint.config,
            activation_parts=checkpoint.activation_parts,
            max_model_len=engine.max_model_len,
            max_running=engine.max_running,
            deterministic=settings.deterministic,
            weights=Weights(0, pinned(settings.model, checkpoint.path), settings.model),
        )
        # The ingress limits the waiting requests. The engine has room for all that the ingress admits.
        self.room = settings.max_waiting + max(settings.slots, slots_of(engine.max_running))
        load = codec or partial(TextCodec.load, checkpoint.path)
        self.compiler = GrammarCompiler(lambda: TokenVocabulary.for_checkpoint(load(), checkpoint.config))
        self._checkpoint, self._device = checkpoint, checkpoint.device
        self._has_weights = True  # whether the weights have memory, which sleep of level 2 gives back
        self.weights, self.pause = self.info.weights, PauseState()
        self.controls_thread = False  # whether a command has the engine's thread, or waits for it
        self._changing = asyncio.Lock()
        self._options = LoadOptions(
            checkpoint.dtype, "cpu", settings.block_size, quantization=settings.quantization, shard=checkpoint.shard
        )

    @property
    def failure(self) -> str | None:
        return self.ranks.failure if self.ranks else None

    async def compiled(
        self, request: GenerationRequest, constraint: Constraint
    ) -> tuple[GenerationRequest, tuple[str, ...]]:
        """The request with its grammar, and the keywords that are not enforced."""
        began = time.monotonic()
        grammar = await self.compiler.compile(constraint, Owner(request.sharing.tenant, request.sharing.cache_salt))
        return replace(request, grammar=grammar, delay_s=time.monotonic() - began), grammar.constraint.ignored

    async def control(self, thread: EngineThread, command: ControlCommand) -> tuple[Weights, PauseState]:
        """Carries out a command. Returns the weights, as in `ControlResult`, and the present pause.

        Changes come one after the other. Raises the errors of `EngineThread.run`; CheckpointError if weights cannot be
        served or read. The state is then as before.
        """
        if isinstance(command, CheckWeights):
            return await asyncio.to_thread(self._check, command.weights), self.pause
        async with self._changing:
            match command:
                case UpdateWeights(weights):
                    if self.weights.older_than(weights):
                        await self._update(thread, weights)
                        self.weights = weights
                case SetPause(state, wait):
                    if self.pause.older_than(state):
                        await self._set_pause(thread, state, wait=wait)
                        self.pause = state
                case ResetPrefixCache():
                    with self._controlling():
                        await thread.run(self.engine.reset_prefix_cache)
        return self.weights, self.pause

    def _check(self, weights: Weights) -> Weights:
        folders, has_mrp = check_update(weights.all_folders, self.info.config, self._options, partial=weights.partial)
        mrp_version = weights.version if has_mrp else weights.mrp_version
        return structs.replace(weights, folders=folders, mrp_version=mrp_version)

    async def _update(self, thread: EngineThread, weights: Weights) -> None:
        newest_only = self._has_weights and _follows(weights, self.weights)
        apply = await asyncio.to_thread(self._load, weights, newest_only=newest_only)
        update = partial(self.engine.update_weights, apply, weights.version, weights.mrp_version)
        with self._controlling():
            await thread.run(update, when_idle=True, abort=weights.abort)

    def _load(self, weights: Weights, *, newest_only: bool) -> Callable[[], None]:
        """Loads weights. Returns the function that applies them, which may raise OutOfMemory. Blocks."""
        load = partial(load_update, served=self.info.config) if self.ranks is None else self.ranks.fetch
        fresh = load(weights.all_folders, options=self._options, newest_only=newest_only)
        return partial(self._apply, fresh)

    def _apply(self, fresh: Checkpoint) -> None:
        if not self._has_weights:
            if self.ranks is None:
                restore_weights(self._checkpoint, self._device)
            else:
                self.ranks.restore_weights()
            self._has_weights = True
        if self.ranks is None:
            apply_update(self._checkpoint, fresh)
        else:
            self.ranks.apply(fresh)

    async def _set_pause(self, thread: EngineThread, state: PauseState, *, wait: bool) -> None:
        """Running requests finish before sleep, paused ones included. If waking up fails, the engine sleeps on."""
        engine = self.engine
        with self._controlling():
            if state.paused and (wait or not engine.paused):
                await thread.run(engine.pause, when_idle=wait)
            if state.sleep_level > engine.sleep_level:
                await thread.run(partial(self._sleep, state.sleep_level), when_idle=True)
            elif not state.sleep_level and engine.sleep_level:
                if not self._has_weights:
                    await thread.run(await asyncio.to_thread(self._load, self.weights, newest_only=False))
                await thread.run(engine.wake_up)
            if engine.paused and not state.paused:
                await thread.run(engine.resume)

    @contextmanager
    def _controlling(self) -> Iterator[None]:
        self.controls_thread = True
        try:
            yield
        finally:
            self.controls_thread = False

    def _sleep(self, level: int) -> None:
        self.engine.sleep(level)
        if level < 2 or not self._has_weights:
            return
        if self.ranks is None:
            drop_weights(self._checkpoint)
        else:
            self.ranks.drop_weights()
        self._has_weights = False

    def close(self) -> None:
        if self.ranks:
            self.ranks.close()
        self.compiler.close()


def _follows(weights: Weights, served: Weights) -> bool:
    """Whether only the newest folder of `weights` differs from the served weights.

    Its other folders are then served folders in the same order. Folders between them are overlaid by the newest one.
    """
    *earlier, _ = weights.all_folders
    served_folders = iter(served.all_folders)
    return bool(earlier) and all(folder in served_folders for folder in earlier)


def load_core(settings: Settings, observer: Observer, deps: EngineDeps | None = None) -> EngineCore:
    """Loads the checkpoint, on several devices if the settings say so, and prepares its engine.

    Blocks until the weights are read and the costs of forwards are measured. Raises the errors of loading.
    """
    device = pick_device(settings.device)
    options = LoadOptions(
        pick_dtype(settings.dtype, device), device, settings.block_size, quantization=settings.quantization
    )
    deps, size = deps or EngineDeps(), settings.tensor_parallel_size
    with ExitStack() as after_an_error:
        if size == 1:
            checkpoint = load_checkpoint(settings.model, options)
        else:
            executor = TensorParallelExecutor(size, device, deterministic=settings.deterministic)
            after_an_error.enter_context(executor)
            checkpoint, deps = executor.load(settings.model, options), replace(deps, ranks=executor)
        core = EngineCore(checkpoint, settings, observer, deps)
        core.engine.prepare()
        after_an_error.pop_all()
    return core


def _limits(settings: Settings, checkpoint: Checkpoint, deps: EngineDeps) -> EngineConfig:
    """The engine's limits: the settings, or where they are open the largest that fit beside the weights.

    On CUDA the KV cache gets the memory that captured graphs and the largest forward leave. With several ranks, rank 0
    needs the most memory: it alone has the logits.
    """
    ranks = _ranks_of(deps)
    memory = ranks.memory() if ranks else memory_of(checkpoint.device)
    sizes = RequestedSizes(
        kv_cache_tokens=_number(settings.kv_cache_tokens),
        max_running=_number(settings.max_num_seqs),
        max_rows=_number(settings.max_rows),
        memory_utilization=settings.gpu_memory_utilization,
        kv_cache_dtype=settings.kv_cache_dtype,
    )
    plan = partial(plan_memory, model=checkpoint.shard_config, itemsize=checkpoint.dtype.itemsize, memory=memory)
    fitted = plan(sizes)
    if sizes.kv_cache_tokens is None and checkpoint.device.type == "cuda":
        rows, measured = _measured(checkpoint, _config(settings, fitted), deps)
        fitted = plan(replace(sizes, max_rows=rows), measured=measured)
    _log.info(
        "KV cache of %d tokens (%s), %d requests, %d rows; forwards and graphs take %.0f MiB",
        fitted.kv_cache_tokens,
        settings.kv_cache_dtype,
        fitted.max_running,
        fitted.max_rows,
        fitted.forward_bytes / 2**20,
    )
    return _config(settings, fitted)


def _measured(checkpoint: Checkpoint, config: EngineConfig, deps: EngineDeps) -> tuple[int, int]:
    """The most rows of a forward that the device can compute, and the bytes of all graphs and of such a forward."""
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
        prefix_cache=settings.enable_prefix_caching,
        deterministic=settings.deterministic,
        attention=settings.attention_backend,
        kv_cache_dtype=settings.kv_cache_dtype,
        cuda_graphs=settings.cuda_graphs == "auto",
        max_prefill_tokens=settings.max_prefill_tokens,
        torch_profiler_dir=torch_profiler_dir(),
    )


def _ranks_of(deps: EngineDeps) -> TensorParallelExecutor | None:
    return cast(TensorParallelExecutor | None, deps.ranks)


def _number(setting: int | Literal["auto"]) -> int | None:
    return None if setting == "auto" else setting
