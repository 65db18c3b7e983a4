"""What is read off the logits of a position over the whole vocabulary: in torch's operations, or by one Triton kernel.

The kernel reads logits once, in the type the model gives, and stores nothing as wide as the vocabulary. Only positions
sampled with top-k or top-p are computed in torch's operations there, too: they need the logits in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from service.engine.forward.sampling import Candidates, Read, choose, entropies, noise_key, temperature
from service.model.transfer import send

#: Tokens of a step of the kernel, and its warps.
_STEP, _WARPS = 2048, 8


class Vocabulary(Protocol):
    """Reads logits `[M, V]`, one row a read. `keeps_logits`: whether they are as they were, and weights returned."""

    mask_token_id: int
    keeps_logits: bool

    def read(self, logits: Tensor, reads: Sequence[Read]) -> tuple[Tensor, Tensor | None]:
        """-> `[M, 3]` float64: tokens, confidences, entropies (0 if none is asked for); the rows' logsumexp or None."""


class TorchVocabulary:
    """In torch's operations, which make copies in float32."""

    def __init__(self, mask_token_id: int) -> None:
        self.mask_token_id, self.keeps_logits = mask_token_id, False

    def read(self, logits: Tensor, reads: Sequence[Read]) -> tuple[Tensor, Tensor | None]:
        """As `Vocabulary`; there is no logsumexp."""
        return chosen(logits, reads, self.mask_token_id), None


class TritonVocabulary:
    """By the kernel, which runs on CUDA and in Triton's interpreter."""

    def __init__(self, mask_token_id: int) -> None:
        from service.engine.forward import vocabulary_kernels

        self._kernel = vocabulary_kernels.read
        self.mask_token_id, self.keeps_logits = mask_token_id, True

    def read(self, logits: Tensor, reads: Sequence[Read]) -> tuple[Tensor, Tensor | None]:
        """As `Vocabulary`; the logits stay as they are."""
        count, width = logits.shape
        asked = send(_questions(reads), logits.device)
        out = torch.empty(count, 3, dtype=torch.float64, device=logits.device)
        weight = torch.empty(count, dtype=torch.float32, device=logits.device)
        noise = any(read.sampling.temperature > 0 for read in reads)
        self._kernel[count,](
            logits, asked, out, weight, width, logits.stride(0), self.mask_token_id,
            STEP=_STEP, NOISE=noise, num_warps=_WARPS,
        )  # fmt: skip
        filtered = [number for number, read in enumerate(reads) if read.sampling.temperature > 0 and read.filtered]
        if filtered:
            here = send(np.array(filtered), logits.device)
            out.index_copy_(0, here, chosen(logits[here], [reads[number] for number in filtered], self.mask_token_id))
        return out, weight


def vocabulary_for(mask_token_id: int, attention: str) -> Vocabulary:
    """The kernel where attention is by Triton's kernels, too."""
    return TritonVocabulary(mask_token_id) if attention == "triton" else TorchVocabulary(mask_token_id)


def chosen(logits: Tensor, reads: Sequence[Read], mask_token_id: int, candidates: Candidates | None = None) -> Tensor:
    """logits `[M, V]`, or of candidates `[M, C]`, -> tokens, confidences, entropies (0 if none asks), `[M, 3]`."""
    asked = any(read.entropy for read in reads)  # and answered first: choosing may overwrite the logits
    entropy = entropies(logits, reads) if asked else torch.zeros(len(reads), device=logits.device)
    tokens, confidences = choose(logits, reads, mask_token_id, candidates)
    return torch.stack([tokens.double(), confidences.double(), entropy.double()], dim=1)


def _questions(reads: Sequence[Read]) -> NDArray[np.int32]:
    """What the kernel is told of each read, `[M, 5]`."""
    asked = np.empty((len(reads), 5), np.int32)
    asked[:, 0] = np.array([temperature(read.sampling) for read in reads], np.float32).view(np.int32)
    asked[:, 1] = [read.sampling.temperature > 0 for read in reads]
    keys = [noise_key(read) if read.sampling.temperature > 0 else (0, 0) for read in reads]
    asked[:, 2:4] = np.array(keys, np.uint32).view(np.int32)
    asked[:, 4] = [-1 if read.token is None else read.token for read in reads]
    return asked
