"""Makes a replica's engine: its limits are the settings, or where they are open the largest that fit.

On CUDA the KV cache gets the memory that captured graphs and the largest forward leave. A graph has the addresses of
its cache. So what graphs take is measured first, by a sample of them on a trial engine. Then the engine captures all.
"""

import gc
import logging
from dataclasses import replace
from functools import partial
from typing import Literal, cast

from service.engine import Engine, EngineConfig, EngineDeps, Observer
from service.engine.memory_plan import ForwardMemory, MemoryPlan, RequestedSizes, plan_memory
from service.model import Checkpoint
from service.model.device import free_bytes, is_out_of_memory, memory_of
from service.parallel import TensorParallelExecutor
from service.settings.settings import Settings, torch_profiler_dir

_log = logging.getLogger(__name__)

#: The part of the cache's bytes that forwards may take less than planned. The plan has half of it as a reserve, so that
#: an estimate that is a little too low fits, too.
_UNUSED = 0.01


def fitted_engine(settings: Settings, checkpoint: Checkpoint, observer: Observer, deps: EngineDeps) -> Engine:
    """The engine. On CUDA it is warmed up if the settings leave the size of its cache open.

    With several ranks, rank 0 needs the most memory: it alone has the logits.
    """
    ranks, device = ranks_of(deps), checkpoint.device
    memory = ranks.memory() if ranks else memory_of(device)
    sizes = RequestedSizes(
        kv_cache_tokens=_number(settings.kv_cache_tokens),
        max_running=_number(settings.max_num_seqs),
        max_rows=_number(settings.max_rows),
        memory_utilization=settings.gpu_memory_utilization,
        kv_cache_dtype=settings.kv_cache_dtype,
    )
    plan = partial(plan_memory, model=checkpoint.shard_config, itemsize=checkpoint.dtype.itemsize, memory=memory)
    fitted = plan(sizes)
    if sizes.kv_cache_tokens is not None or device.type != "cuda":
        return _engine(settings, checkpoint, fitted, observer, deps)
    free, reserve = free_bytes(device), int(fitted.kv_bytes * _UNUSED / 2)
    rows, forwards = _measured(checkpoint, _config(settings, fitted), deps)

    def captured(graphs: int) -> tuple[Engine, MemoryPlan, int]:
        """-> an engine whose cache leaves room for `graphs` bytes, its plan, and the bytes that it takes for them."""
        needed = graphs + forwards.largest + reserve
        fitted = plan(replace(sizes, max_rows=rows), measured=needed)
        engine = _engine(settings, checkpoint, fitted, observer, deps)
        engine.warm_up()
        return engine, fitted, free - free_bytes(device) - fitted.kv_bytes

    engine, fitted, taken = captured(forwards.graphs)
    if not -reserve <= forwards.graphs - taken <= fitted.kv_bytes * _UNUSED - reserve:
        _log.warning(
            "graphs take %.0f MiB and not %.0f: they are captured again", taken / 2**20, forwards.graphs / 2**20
        )
        del engine
        gc.collect()  # graphs and networks refer to each other
        engine, *_ = captured(taken)
    return engine


def _engine(
    settings: Settings, checkpoint: Checkpoint, fitted: MemoryPlan, observer: Observer, deps: EngineDeps
) -> Engine:
    _log.info(
        "KV cache of %d tokens (%s), %d requests, %d rows; forwards and graphs take %.0f MiB",
        fitted.kv_cache_tokens,
        settings.kv_cache_dtype,
        fitted.max_running,
        fitted.max_rows,
        fitted.forward_bytes / 2**20,
    )
    return Engine(checkpoint, _config(settings, fitted), observer, deps)


def _measured(checkpoint: Checkpoint, config: EngineConfig, deps: EngineDeps) -> tuple[int, ForwardMemory]:
    """The most rows of a forward that the device can compute, and the memory of all graphs and of such a forward."""
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


def ranks_of(deps: EngineDeps) -> TensorParallelExecutor | None:
    """The other ranks of an engine on several devices."""
    return cast(TensorParallelExecutor | None, deps.ranks)


def _number(setting: int | Literal["auto"]) -> int | None:
    return None if setting == "auto" else setting
