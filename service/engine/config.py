"""The configuration of an engine. Its values come from the service's settings, or from a library's user."""

from dataclasses import dataclass
from pathlib import Path

from service.settings import defaults

#: the minimum size of a vocabulary whose drafts are chosen from some of its tokens (dev/lab/performance-log.md)
_LARGE_VOCABULARY = 16384


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Limits of one engine."""

    max_running: int = defaults.MAX_RUNNING_CPU  # requests decoded together
    max_rows: int = defaults.MAX_ROWS_CPU  # rows of one forward; a row is one block
    kv_cache_tokens: int = defaults.KV_CACHE_TOKENS_CPU  # tokens in the KV cache over all requests
    #: tokens of one request, prompt and completion; None: the checkpoint's length, or the cache's if it is less
    max_model_len: int | None = None
    prefix_cache: bool = True  # whether requests share the KV of equal leading blocks
    #: Every row is computed with the same tensor shapes in any batch. A request with a seed then gets identical
    #: results, bit for bit, on any machine of the same kind. Slower. On CUDA a library user also sets
    #: `TORCH_DISABLE_NATIVE_JIT=1`: other packages may bring kernels that torch then takes.
    deterministic: bool = False
    #: The number of tokens from which a position's draft is chosen, 0: the whole vocabulary. None: by the vocabulary's
    #: size. The output is the same.
    draft_candidates: int | None = None
    attention: str = "auto"  # the backend's name (`service/model/attention/registry.py`); `auto`: the fastest available
    kv_cache_dtype: str = "auto"  # the form of KV pages (`service/model/attention/pages.py`); `auto`: the weights' type
    cuda_graphs: bool = True  # whether forwards on CUDA are captured once for each size and replayed
    #: whether a step begins before the last one's results are read (`step.py`); None: on CUDA, where it is faster
    async_scheduling: bool | None = None
    #: prompt tokens in a step that also decodes; None: the default of the device's kind
    max_prefill_tokens: int | None = None
    torch_profiler_dir: Path | None = None  # the folder for a trace of some steps; None: no trace

    def prefill_tokens(self, device: str) -> int:
        default = defaults.PREFILL_TOKENS_CPU if device == "cpu" else defaults.PREFILL_TOKENS_GPU
        return self.max_prefill_tokens or default

    def goes_ahead(self, device: str) -> bool:
        return device == "cuda" if self.async_scheduling is None else self.async_scheduling

    def candidates(self, vocab_size: int) -> int:
        if self.draft_candidates is not None:
            return self.draft_candidates
        return defaults.DRAFT_CANDIDATES if vocab_size >= _LARGE_VOCABULARY else 0
