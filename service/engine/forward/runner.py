"""Puts rows through the backbone or through MRP.

Knows tensors and rows; no requests, no modes, no scheduling. Which rows share a forward is the grouping's business,
what is read off the hidden states the readout's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from service.decode.policy import Reading
from service.engine.forward.extent import MAX_LOGITS, MAX_SAMPLED_LOGITS
from service.engine.forward.graphs import Capture, CudaCapture, Graphs, Inputs, Network
from service.engine.forward.grouping import Group, Grouping, Together, join
from service.engine.forward.pending import Pending
from service.engine.forward.readout import Readout
from service.engine.forward.rows import Row, to_tensors
from service.engine.forward.vocabulary import vocabulary_for
from service.errors import SettingsError
from service.model.attention import AUTO, Attention, Capturable, PagedCache, attention_for, resolve
from service.model.checkpoint import Checkpoint
from service.model.config import ModelConfig
from service.model.layers import Attend

_T = TypeVar("_T")


class RowRunner(Protocol):
    """What an engine asks of a runner. `num_pages`: of its cache."""

    config: ModelConfig
    device: torch.device

    @property
    def num_pages(self) -> int:
        """Pages of its cache."""

    def evaluate(self, rows: Sequence[Row]) -> list[Reading]:
        """The backbone over rows; a Reading for every row."""

    def refine(self, rows: Sequence[Row]) -> list[Reading]:
        """MRP over anchored rows; a Reading for every row."""


@dataclass(frozen=True, slots=True)
class Execution:
    """How the networks are computed.

    `attention`: an implementation's name, `service/model/attention/registry.py`. `cuda_graphs`: whether forwards are
    replayed where that is possible. `capture`: how they are made repeatable; None: by CUDA graphs, on CUDA.
    """

    attention: str = AUTO
    cuda_graphs: bool = True
    capture: Capture | None = None


class Runner:
    """The networks of a checkpoint over one paged cache. `num_candidates`: `readout.py`."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        num_pages: int,
        grouping: Grouping | None = None,
        num_candidates: int = 0,
        execution: Execution | None = None,
    ) -> None:
        execution = execution or Execution()
        self.config = checkpoint.config
        self._backbone, self._mrp = checkpoint.backbone, checkpoint.mrp
        self.device = checkpoint.device
        vocabulary = checkpoint.config.vocab_size
        self._grouping = grouping or Together(
            max(1, MAX_LOGITS // vocabulary), max(1, MAX_SAMPLED_LOGITS // vocabulary)
        )
        self._cache = PagedCache(checkpoint.config, num_pages, checkpoint.device, checkpoint.dtype)
        attention = resolve(execution.attention, checkpoint.device, checkpoint.dtype)
        self._attention = attention_for(self._cache, attention)
        self._graphs = _graphs_for(self._attention, execution, checkpoint.device, self._grouping.min_rows)
        read = vocabulary_for(self.config.mask_token_id, attention)
        self._readout = Readout(self._backbone, read, self._grouping, num_candidates)

    @property
    def num_pages(self) -> int:
        """Pages of its cache."""
        return self._cache.num_pages

    @torch.inference_mode()
    def evaluate(self, rows: Sequence[Row]) -> list[Reading]:
        """The backbone over rows; a Reading for every row, `handle` its hidden states `[L, H]`."""
        return self._begin(rows, self._backbone_hidden)()

    @torch.inference_mode()
    def refine(self, rows: Sequence[Row]) -> list[Reading]:
        """MRP over anchored rows; a Reading for every row, `handle` the next anchor."""
        return self._begin(rows, self._mrp_hidden)()

    @torch.inference_mode()
    def begin_evaluate(self, rows: Sequence[Row]) -> Pending[Reading]:
        """As `evaluate`, without waiting for the device."""
        return self._begin(rows, self._backbone_hidden)

    @torch.inference_mode()
    def begin_refine(self, rows: Sequence[Row]) -> Pending[Reading]:
        """As `refine`, without waiting for the device."""
        return self._begin(rows, self._mrp_hidden)

    def _begin(self, rows: Sequence[Row], network: Network) -> Pending[Reading]:
        hidden: list[Tensor] = []
        places: list[int] = []
        for group in self._grouping.rows(rows):
            order, states = self._forward(group, network)
            own = [group.places[number] for number in order if number < len(group.places)]
            hidden.append(states[: len(own)])
            places += own
        pending = self._readout.begin([rows[place] for place in places], join(hidden))
        return lambda: _put_back(pending(), places)

    def _forward(self, group: Group[Row], network: Network) -> tuple[Sequence[int], Tensor]:
        """The order that the group's rows were computed in, and what came out, `[R, L, H]`.

        Rows that only fill up stay the last.
        """
        rows, width = group.members, group.width
        if self._graphs is not None:
            states = self._graphs.run(network, rows, width, self._inputs(rows))
            if states is not None:
                return range(len(rows)), states
        attend = self._attention.prepare(rows, width)
        return attend.order, network(self._inputs([rows[number] for number in attend.order]), attend)

    def _inputs(self, rows: Sequence[Row]) -> Inputs:
        tensors = to_tensors(rows, self.config.mask_token_id, self.device)
        anchors = [row.anchor for row in rows if row.anchor is not None]
        return Inputs(tensors.tokens, tensors.positions, torch.stack(anchors) if anchors else None)

    def _backbone_hidden(self, inputs: Inputs, attend: Attend) -> Tensor:
        """-> hidden states `[R, L, H]`."""
        same = self._grouping.same_shapes
        hidden: Tensor = self._backbone(inputs.tokens, inputs.positions, attend, same)
        return hidden

    def _mrp_hidden(self, inputs: Inputs, attend: Attend) -> Tensor:
        """-> the next anchors `[R, L, H]`."""
        if self._mrp is None:
            raise SettingsError("this checkpoint has no MRP module")
        embedded, rotation = self._backbone.embed(inputs.tokens), self._backbone.rotation(inputs.positions)
        hidden: Tensor = self._mrp(embedded, inputs.anchors, rotation, attend)
        return hidden


def _graphs_for(attention: Attention, execution: Execution, device: torch.device, least: int) -> Graphs | None:
    """None where the device has no graphs, the attention cannot be captured, or nobody wants them."""
    capture = execution.capture or (CudaCapture() if device.type == "cuda" else None)
    if capture is None or not execution.cuda_graphs or not isinstance(attention, Capturable):
        return None
    return Graphs(attention, capture, least)


def _put_back(values: list[_T], places: list[int]) -> list[_T]:
    """The values in the order of their places."""
    return [value for _, value in sorted(zip(places, values, strict=True), key=itemgetter(0))]
