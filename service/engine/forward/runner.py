"""Runs rows through the backbone or through MRP, and samples the output. A forward is begun now and read later.

Knows rows; no requests, no modes, no scheduling. The partition decides which rows share a forward, the model forward
computes hidden states, the sampler chooses tokens. On an asynchronous device a forward computes while the host goes on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from service.decode.policy import Prediction
from service.engine.forward.forward_limits import MAX_LOGITS, MAX_SAMPLED_LOGITS
from service.engine.forward.logits_sampler import logits_sampler_for
from service.engine.forward.model_forward import ExecutionConfig, Network, ShapePolicy
from service.engine.forward.partition import BatchPartition, WholeBatch, join
from service.engine.forward.rows import Row
from service.engine.forward.sampler import Sampler
from service.model.attention import resolve_backend
from service.model.checkpoint import Checkpoint
from service.model.config import ModelConfig

_T = TypeVar("_T")

#: Waits until a forward is done, and returns a result for every row.
Pending = Callable[[], list[_T]]


class ModelRunner(Protocol):
    """The runner of an engine. `num_pages`: the pages of its KV cache."""

    config: ModelConfig
    device: torch.device

    @property
    def num_pages(self) -> int:
        """Pages of its KV cache."""

    def begin(self, network: Network, rows: Sequence[Row]) -> Pending[Prediction]:
        """Begins a forward of a network over rows; for MRP the rows have anchors. -> a Prediction for every row.

        The `handle` of a Prediction is the next anchor. Forwards are computed in the order in which they are begun.
        """


class CheckpointRunner:
    """The networks of a checkpoint over one paged KV cache. `num_candidates`: draft candidates a position, 0: none."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        num_pages: int,
        partition: BatchPartition | None = None,
        num_candidates: int = 0,
        execution: ExecutionConfig | None = None,
    ) -> None:
        execution = execution or ExecutionConfig()
        attention = resolve_backend(execution.attention, checkpoint.device, checkpoint.dtype)
        execution = replace(execution, attention=attention)
        self.config, self.device = checkpoint.config, checkpoint.device
        vocab_size = checkpoint.config.vocab_size
        self._partition = partition or WholeBatch(
            max(1, MAX_LOGITS // vocab_size), max(1, MAX_SAMPLED_LOGITS // vocab_size)
        )
        shapes = ShapePolicy(self._partition.min_rows, self._partition.fixed_shapes)
        self._model = execution.networks(checkpoint, num_pages, shapes, execution)
        logits_sampler = logits_sampler_for(self.config.mask_token_id, checkpoint.device, checkpoint.dtype)
        self._sampler = Sampler(checkpoint.backbone, logits_sampler, self._partition, num_candidates)

    @property
    def num_pages(self) -> int:
        """Pages of its KV cache."""
        return self._model.num_pages

    @torch.inference_mode()
    def begin(self, network: Network, rows: Sequence[Row]) -> Pending[Prediction]:
        """See `ModelRunner.begin`. Does not wait for the device."""
        hidden: list[Tensor] = []
        order: list[int] = []
        for group in self._partition.rows(rows):
            computed, states = self._model.forward(network, group)
            indices = [group.indices[i] for i in computed if i < len(group.indices)]
            hidden.append(states[: len(indices)])
            order += indices
        if order == list(range(len(rows))):
            return self._sampler.begin(rows, join(hidden))
        pending = self._sampler.begin([rows[index] for index in order], join(hidden))
        return lambda: _restored(pending(), order)


def forward_clock(device: torch.device, ranks: int = 1) -> Callable[[], float]:
    """A clock in seconds for timing forwards. `ranks`: the number of devices.

    With one CPU thread it is the thread's own time: that of the forward, whoever else wants the core. With several the
    calling thread does not see the work of the others, so it is the wall's.
    """
    alone = device.type == "cpu" and torch.get_num_threads() == ranks == 1
    return time.thread_time if alone else time.perf_counter


def done(results: list[_T]) -> Pending[_T]:
    """The results of a forward that is done."""
    return lambda: results


def _restored(values: list[_T], order: list[int]) -> list[_T]:
    """The values by ascending index. `order`: the index of each value."""
    return [value for _, value in sorted(zip(order, values, strict=True), key=itemgetter(0))]
