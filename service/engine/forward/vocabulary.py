"""What is read off the logits of a position over the whole vocabulary: in torch's operations, or by one Triton kernel.

The kernel reads logits once, in the type the model gives, and stores nothing as wide as the vocabulary. Only positions
sampled with top-k or top-p are computed in torch's operations there, too: they need the logits in order.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from service.engine.forward.anchors import Candidates
from service.engine.forward.reads import Reads
from service.engine.forward.sampling import choose, entropies, noise_keys
from service.model import triton_support
from service.model.transfer import to_device_async

#: Tokens of a step of the kernel, and its warps.
_STEP, _WARPS = 2048, 8


class Vocabulary(Protocol):
    """Reads logits `[M, V]`, one row a read. `keeps_logits`: whether they are as they were, and weights returned."""

    mask_token_id: int
    keeps_logits: bool

    def read(self, logits: Tensor, reads: Reads) -> tuple[Tensor, Tensor | None]:
        """-> `[M, 3]` float64: tokens, confidences, entropies (0 if none is asked for); the rows' logsumexp or None."""


class TorchVocabulary:
    """In torch's operations, which make copies in float32."""

    def __init__(self, mask_token_id: int) -> None:
        self.mask_token_id, self.keeps_logits = mask_token_id, False

    def read(self, logits: Tensor, reads: Reads) -> tuple[Tensor, Tensor | None]:
        """As `Vocabulary`; there is no logsumexp."""
        return chosen(logits, reads, self.mask_token_id), None


class TritonVocabulary:
    """By the kernel, which runs on CUDA and in Triton's interpreter."""

    def __init__(self, mask_token_id: int) -> None:
        from service.engine.forward import vocabulary_kernels

        self._kernel = vocabulary_kernels.read
        self.mask_token_id, self.keeps_logits = mask_token_id, True

    def read(self, logits: Tensor, reads: Reads) -> tuple[Tensor, Tensor | None]:
        """As `Vocabulary`; the logits stay as they are."""
        count, width = logits.shape
        asked = to_device_async(_questions(reads), logits.device)
        out = torch.empty(count, 3, dtype=torch.float64, device=logits.device)
        weight = torch.empty(count, dtype=torch.float32, device=logits.device)
        noise = bool(reads.sampled.any())
        self._kernel[count,](
            logits, asked, out, weight, width, logits.stride(0), self.mask_token_id,
            STEP=_STEP, NOISE=noise, num_warps=_WARPS,
        )  # fmt: skip
        filtered = np.flatnonzero(reads.questions.filtered[reads.row])
        if len(filtered):
            here = to_device_async(filtered, logits.device)
            out.index_copy_(0, here, chosen(logits[here], reads.take(filtered), self.mask_token_id))
        return out, weight


def vocabulary_for(mask_token_id: int, device: torch.device, dtype: torch.dtype) -> Vocabulary:
    """The kernel where Triton is available on CUDA, whatever the attention's backend is."""
    by_triton = triton_support.use_triton(device, dtype)
    return TritonVocabulary(mask_token_id) if by_triton else TorchVocabulary(mask_token_id)


def chosen(logits: Tensor, reads: Reads, mask_token_id: int, candidates: Candidates | None = None) -> Tensor:
    """logits `[M, V]`, or of candidates `[M, C]`, -> tokens, confidences, entropies (0 if none asks), `[M, 3]`."""
    asked = reads.questions.entropy  # and answered first: choosing may overwrite the logits
    entropy = entropies(logits, reads) if asked else torch.zeros(len(reads), device=logits.device)
    tokens, confidences = choose(logits, reads, mask_token_id, candidates)
    return torch.stack([tokens.double(), confidences.double(), entropy.double()], dim=1)


def _questions(reads: Reads) -> NDArray[np.int32]:
    """What the kernel is told of each read, `[M, 5]`."""
    asked = np.zeros((len(reads), 5), np.int32)
    asked[:, 0] = reads.temperature.view(np.int32)
    asked[:, 1] = sampled = reads.sampled
    if sampled.any():
        asked[:, 2:4] = noise_keys(reads).astype(np.uint32).view(np.int32)
    asked[:, 4] = reads.token
    return asked
