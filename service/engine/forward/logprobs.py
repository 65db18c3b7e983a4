"""Log-probabilities that a request wants: of the top tokens of a position and of tokens that it names.

They are of the full softmax at the request's temperature, as confidences are, over the tokens that a grammar allows.
The mask token, which is never chosen, is not among the top tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

from service.decode.block import PositionLogprobs
from service.engine.forward.logits_sampler import apply_temperature
from service.engine.forward.partition import join
from service.engine.forward.sampling_batch import SamplingBatch
from service.engine.request import LogprobsRequest
from service.model.transfer import to_device_async, to_host_async


class LogprobsCollector:
    """The log-probabilities of one forward. `add` gets the logits of each group of positions, `begin` ends it."""

    def __init__(self, batch: SamplingBatch, mask_token_id: int) -> None:
        self._requests = batch.metadata.logprobs
        self._most_top = max((request.top_n for request in self._requests.values()), default=0)
        self._most_named = max((len(request.token_ids) for request in self._requests.values()), default=0)
        self._mask = mask_token_id
        self._positions: list[tuple[int, LogprobsRequest]] = []
        self._parts: list[Tensor] = []

    def add(self, logits: Tensor, batch: SamplingBatch) -> None:
        """logits `[M, V]` of the positions, which are not changed."""
        wanted = batch.with_values(self._requests)
        if not wanted:
            return
        indices = np.array([index for index, _ in wanted])
        selected = batch.select(indices)
        scores = apply_temperature(logits[to_device_async(indices, logits.device)].float(), selected).log_softmax(-1)
        tokens = np.zeros((len(wanted), self._most_named), np.int64)
        for row, (_, request) in zip(tokens, wanted, strict=True):
            row[: len(request.token_ids)] = request.token_ids
        named = scores.gather(-1, to_device_async(tokens, logits.device))
        scores[:, self._mask] = -torch.inf
        highest, top = scores.topk(min(self._most_top, scores.shape[-1]))
        self._parts.append(torch.cat([named.double(), highest.double(), top.double()], dim=1))
        self._positions += zip(selected.flat.tolist(), (request for _, request in wanted), strict=True)

    def begin(self) -> Callable[[], Mapping[int, PositionLogprobs]]:
        """Begins the copy to the host. -> waits for it and returns the log-probabilities by `SamplingBatch.flat`."""
        if not self._parts:
            return dict
        copied = to_host_async(join(self._parts))
        return lambda: {
            flat: self._logprobs(values, request)
            for (flat, request), values in zip(self._positions, copied().tolist(), strict=True)
        }

    def _logprobs(self, values: list[float], request: LogprobsRequest) -> PositionLogprobs:
        named, top = values[: self._most_named], values[self._most_named :]
        count = len(top) // 2
        pairs = [(int(token), score) for score, token in zip(top[:count], top[count:], strict=True)]
        possible = [(token, score) for token, score in pairs[: request.top_n] if score > -math.inf]
        return PositionLogprobs(tuple(possible), tuple(named[: len(request.token_ids)]))
