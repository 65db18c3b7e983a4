"""The configuration of an engine. Its values come from the service's settings, or from a library's user."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from service.settings import defaults

#: the least size of a vocabulary whose drafts are chosen from some of its tokens (dev/lab/performance-log.md)
_LARGE_VOCABULARY = 16384

#: whether one micro-batch computes while the policies of the other one run (`micro_batch.py`)
Overlapping = Literal["auto", "on", "off"]


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Limits of one engine.

    `max_running`: the most requests decoded together. `max_rows`: the most rows of one forward (a row is one block).
    `max_prefill_tokens`: the most prompt tokens in a step that also decodes; None: the default of the device's kind.
    `kv_cache_tokens`: the tokens that the KV cache holds over all requests. `max_model_len`: the most tokens of one
    request, prompt and completion; None: the checkpoint's length, or the cache's if it is less.
    `prefix_cache`: whether requests share the KV of equal leading blocks.
    `deterministic`: every row is computed with the same tensor shapes in any batch. A request with a seed then gets
    identical results, bit for bit, on any machine of the same kind. Slower. On CUDA a library user also sets
    `TORCH_DISABLE_NATIVE_JIT=1`: other packages may bring kernels that torch then takes.
    `attention`: the backend's name (`service/model/attention/registry.py`); `auto`: the fastest available.
    `cuda_graphs`: whether forwards on CUDA are captured once for each size and replayed.
    `overlap`: whether requests are divided into two micro-batches; `auto`: if on CUDA and faster.
    `draft_candidates`: the number of tokens from which a position's draft is chosen, 0: the whole vocabulary. None: by
    the vocabulary's size. The output is the same.
    `torch_profiler_dir`: the folder for a trace of some steps; None: no trace (`forward/profiler.py`).
    """

    max_running: int = defaults.MAX_RUNNING_CPU
    max_rows: int = defaults.MAX_ROWS_CPU
    kv_cache_tokens: int = defaults.KV_CACHE_TOKENS_CPU
    max_model_len: int | None = None
    prefix_cache: bool = True
    deterministic: bool = False
    draft_candidates: int | None = None
    attention: str = "auto"
    cuda_graphs: bool = True
    overlap: Overlapping = "auto"
    max_prefill_tokens: int | None = None
    torch_profiler_dir: Path | None = None

    def prefill_tokens(self, device: str) -> int:
        """The most prompt tokens in a step that also decodes, on a kind of device ("cpu", "cuda")."""
        default = defaults.PREFILL_TOKENS_CPU if device == "cpu" else defaults.PREFILL_TOKENS_GPU
        return self.max_prefill_tokens or default

    def candidates(self, vocab_size: int) -> int:
        """The number of tokens from which a draft is chosen; 0: all."""
        if self.draft_candidates is not None:
            return self.draft_candidates
        return defaults.DRAFT_CANDIDATES if vocab_size >= _LARGE_VOCABULARY else 0
