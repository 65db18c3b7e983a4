"""The configuration of an engine. Its values come from the service's settings, or from a library's user."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from service.fair_queue import AGING_S

#: Tokens from which a draft is chosen, and the size of a vocabulary from which on this is faster
#: (dev/lab/performance-log.md).
_CANDIDATES, _LARGE_VOCABULARY = 32, 16384

#: With so many prompt tokens, a step takes a few times as long as a decoding step (dev/lab/performance-log.md).
_PREFILL_TOKENS = {"cpu": 64}
_PREFILL_TOKENS_ELSEWHERE = 512

#: whether one micro-batch computes while the policies of the other one run (`micro_batch.py`)
Overlapping = Literal["auto", "on", "off"]


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Limits of one engine.

    `max_running`: requests decoded together. `max_rows`: rows of one forward (a row is one block).
    `max_prefill_tokens`: prompt tokens in a step that also decodes; None: by the kind of device.
    `kv_cache_tokens`: tokens the KV cache holds over all requests. `max_model_len`: prompt and
    completion of one request, in tokens; None takes the checkpoint's length, or the cache's if less.
    `priority_aging_s`: seconds of waiting that make up for one priority.
    `prefix_cache`: whether requests share the KV of equal leading blocks.
    `deterministic`: every row is computed with the same tensor shapes in any batch. A request with a seed then gets
    identical results, bit for bit, on any machine of the same kind. Slower.
    `attention`: the implementation's name (`service/model/attention/registry.py`); `auto`: the fastest available.
    `cuda_graphs`: whether forwards on CUDA are captured once for each size and replayed.
    `overlap`: whether requests take turns in two halves; `auto`: on CUDA, where it is faster.
    `draft_candidates`: tokens of each position from which MRP's drafts are chosen, 0: the whole vocabulary. None: by
    the vocabulary's size. The output is the same.
    """

    max_running: int = 64
    max_rows: int = 256
    kv_cache_tokens: int = 65536
    max_model_len: int | None = None
    priority_aging_s: float = AGING_S
    prefix_cache: bool = True
    deterministic: bool = False
    draft_candidates: int | None = None
    attention: str = "auto"
    cuda_graphs: bool = True
    overlap: Overlapping = "auto"
    max_prefill_tokens: int | None = None

    def prefill_tokens(self, device: str) -> int:
        """Prompt tokens in a step that also decodes, on a kind of device ("cpu", "cuda")."""
        return self.max_prefill_tokens or _PREFILL_TOKENS.get(device, _PREFILL_TOKENS_ELSEWHERE)

    def candidates(self, vocab_size: int) -> int:
        """The number of tokens from which a draft is chosen; 0: all."""
        if self.draft_candidates is not None:
            return self.draft_candidates
        return _CANDIDATES if vocab_size >= _LARGE_VOCABULARY else 0
