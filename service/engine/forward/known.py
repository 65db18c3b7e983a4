"""What reads ask of a position besides its token: log-probabilities of the likeliest tokens, and of tokens they name.

They are of the full softmax at the read's temperature, as confidences are, and of what a grammar allows. The mask
token, which is never chosen, is not among the likeliest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

from service.decode.block import Known
from service.engine.forward.grouping import join
from service.engine.forward.reads import Reads
from service.engine.forward.sampling import scale
from service.engine.request import Asked
from service.model.transfer import to_device_async, to_host_async


class Asking:
    """The asked reads of one forward. `take` gets the logits of each of its groups, `begin` ends it."""

    def __init__(self, reads: Reads, mask_token_id: int) -> None:
        self._asked = reads.questions.asked
        self._most = max((one.likeliest for one in self._asked.values()), default=0)
        self._named = max((len(one.tokens) for one in self._asked.values()), default=0)
        self._mask = mask_token_id
        self._slots: list[tuple[int, Asked]] = []
        self._parts: list[Tensor] = []

    def take(self, logits: Tensor, reads: Reads) -> None:
        """logits `[M, V]` of the reads, which stay as they are."""
        asking = reads.having(self._asked)
        if not asking:
            return
        numbers = np.array([number for number, _ in asking])
        own = reads.take(numbers)
        scores = scale(logits[to_device_async(numbers, logits.device)].float(), own).log_softmax(-1)
        tokens = np.zeros((len(asking), self._named), np.int64)
        for row, (_, asked) in zip(tokens, asking, strict=True):
            row[: len(asked.tokens)] = asked.tokens
        given = scores.gather(-1, to_device_async(tokens, logits.device))
        scores[:, self._mask] = -torch.inf
        highest, likeliest = scores.topk(min(self._most, scores.shape[-1]))
        self._parts.append(torch.cat([given.double(), highest.double(), likeliest.double()], dim=1))
        self._slots += zip(own.slot.tolist(), (asked for _, asked in asking), strict=True)

    def begin(self) -> Callable[[], Mapping[int, Known]]:
        """Begins the copy to the host. What it returns waits for it: slot -> what is known there."""
        if not self._parts:
            return dict
        copied = to_host_async(join(self._parts))
        return lambda: {
            slot: self._known(values, asked)
            for (slot, asked), values in zip(self._slots, copied().tolist(), strict=True)
        }

    def _known(self, values: list[float], asked: Asked) -> Known:
        given, found = values[: self._named], values[self._named :]
        count = len(found) // 2
        pairs = [(int(token), score) for score, token in zip(found[:count], found[count:], strict=True)]
        likeliest = [(token, score) for token, score in pairs[: asked.likeliest] if score > -math.inf]
        return Known(tuple(likeliest), tuple(given[: len(asked.tokens)]))
