"""Plans a device's memory beside the weights, by numbers: KV cache, running requests, rows of a forward."""

from dataclasses import dataclass

from service.errors import SettingsError
from service.model.attention.interface import NUM_SPARE
from service.model.attention.pages import AUTO, page_bytes
from service.model.config import ModelConfig
from service.model.device import DeviceMemory
from service.settings import defaults

#: Logits that exist at once: 2^28 are 1 GiB in fp32, some 1,700 positions of a vocabulary of 151,936. Sampling with
#: noise makes six more copies (measured), so that a quarter of them takes 1.6 GiB. The runner obeys both limits.
MAX_LOGITS, MAX_SAMPLED_LOGITS = 2**28, 2**26
#: The sizes of CUDA graphs, in rows. Above 64, at most an eighth of the rows is padding.
GRAPH_ROWS = (1, 2, 4, *range(8, 64, 8), *range(64, 128, 16), *range(128, 256, 32), *range(256, 513, 64))
#: bytes per sampled logit: fp32 with six more copies (a greedy logit exists in the weights' type and in fp32)
_SAMPLED_BYTES = 28
#: tokens of a forward on a GPU, and the share of the memory that its tensors may take
_FORWARD_TOKENS, _FORWARD_SHARE = 4096, 0.25
#: the mean tokens of a request for which the plan has room, if the model allows more
_TYPICAL = 512
#: the maximum of bytes of the cache on a CPU: all of it is allocated at the start, and other programs need memory, too
_CPU_BYTES = 4 * 2**30


@dataclass(frozen=True, slots=True)
class RequestedSizes:
    """The requested sizes; None: the largest size that fits. `memory_utilization`: a CPU counts free memory only.

    `kv_cache_dtype`: the form of KV pages.
    """

    kv_cache_tokens: int | None = None
    max_running: int | None = None
    max_rows: int | None = None
    memory_utilization: float = 0.9
    kv_cache_dtype: str = AUTO


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Sizes that fit. `kv_bytes`: the bytes of the KV cache. `forward_bytes`: those of forwards, graphs included."""

    kv_cache_tokens: int
    max_running: int
    max_rows: int
    kv_bytes: int
    forward_bytes: int


@dataclass(frozen=True, slots=True)
class ForwardMemory:
    """The bytes on CUDA beside weights and cache: all graphs' and the largest forward's."""

    graphs: int
    largest: int


def plan_memory(
    sizes: RequestedSizes, model: ModelConfig, itemsize: int, memory: DeviceMemory, measured: int | None = None
) -> MemoryPlan:
    """The sizes that fit into the free memory. `itemsize`: bytes of one weight.

    `measured`: the bytes that the largest forward and all CUDA graphs take; None: the estimate of a forward alone.
    SettingsError, which names `kv_cache_tokens`, if there is no room for two blocks.
    """
    cpu = memory.kind == "cpu"
    budget = memory.free if cpu else memory.free - memory.total
    budget = int(budget * sizes.memory_utilization) if cpu else int(budget + memory.total * sizes.memory_utilization)
    rows = sizes.max_rows or _rows(model, itemsize, budget, cpu)
    forward = forward_bytes(model, rows, itemsize) if measured is None else measured
    running = sizes.max_running or (defaults.MAX_RUNNING_CPU if cpu else defaults.MAX_RUNNING_GPU)
    page = page_bytes(model, itemsize, sizes.kv_cache_dtype)
    if sizes.kv_cache_tokens is None:
        available = min(budget - forward, _CPU_BYTES) if cpu else budget - forward
        copied = page_bytes(model, itemsize) / model.num_kv_layers  # an attention kernel may copy all of one layer
        pages = int(available / (page + copied)) - NUM_SPARE
        longest = model.max_positions // model.block_size
        pages = min(pages, defaults.KV_CACHE_TOKENS_CPU // model.block_size if cpu else max(1, running * longest))
        tokens = pages * model.block_size
        if pages < 2:
            free, total = memory.free / 2**20, memory.total / 2**20
            raise SettingsError(
                f"kv_cache_tokens is auto, but of {total:,.0f} MiB on {memory.kind} {free:,.0f} MiB are free: beside "
                f"the weights a forward takes {forward / 2**20:,.0f} MiB and the KV cache at least "
                f"{page / 2**19:,.1f} MiB. Lower max_rows, raise gpu_memory_utilization or take a larger device",
                param="kv_cache_tokens",
            )
    else:
        tokens = sizes.kv_cache_tokens
    typical = min(model.max_positions, _TYPICAL)
    running = sizes.max_running or max(1, min(running, tokens // typical))
    return MemoryPlan(tokens, running, rows, (tokens // model.block_size + NUM_SPARE) * page, forward)


def forward_bytes(model: ModelConfig, rows: int, itemsize: int) -> int:
    """The estimated bytes of a forward over `rows` rows, without weights and cache."""
    logits = rows * model.block_size * model.vocab_size
    greedy, sampled = min(logits, MAX_LOGITS) * (4 + itemsize), min(logits, MAX_SAMPLED_LOGITS) * _SAMPLED_BYTES
    heads = (model.num_heads + 2 * model.num_kv_heads) * model.head_dim
    activations = rows * model.block_size * (6 * model.hidden_size + 3 * heads + _inner(model)) * itemsize
    return activations + max(greedy, sampled)


def _inner(model: ModelConfig) -> int:
    """The activations of a token's feed-forward: with experts also its copies and their outputs."""
    dense, experts = 3 * model.intermediate_size, model.experts
    if experts is None:
        return dense
    routed = experts.per_token * (3 * experts.intermediate_size + 2 * model.hidden_size)
    return max(dense, routed + 3 * experts.shared_size)


def _rows(model: ModelConfig, itemsize: int, budget: int, cpu: bool) -> int:
    """The rows that the kind of device can use, halved until a forward leaves most of the memory to the cache."""
    min_rows = model.block_size + 2
    rows = defaults.MAX_ROWS_CPU if cpu else max(defaults.MAX_ROWS_CPU, _FORWARD_TOKENS // model.block_size)
    while rows > min_rows and forward_bytes(model, rows, itemsize) > _FORWARD_SHARE * budget:
        rows //= 2
    return max(min_rows, rows)
