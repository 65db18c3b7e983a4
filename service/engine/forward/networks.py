"""The networks of a checkpoint over one paged cache: tokens in, hidden states out.

Knows tensors, rows and where their keys lie; nothing of what is read off the hidden states. With several ranks
(`service/parallel`) every rank has networks of its part, and all are given the same groups of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from service.engine.forward.graphs import Capture, CudaCapture, Graphs, Inputs, Network
from service.engine.forward.grouping import Group
from service.engine.forward.rows import Row, anchors_of, to_tensors
from service.errors import SettingsError
from service.model.attention import AUTO, AttentionBackend, GraphCapable, PagedCache, attention_backend, resolve_backend
from service.model.checkpoint import Checkpoint
from service.model.layers import Attend

#: which of a checkpoint's networks
Which = Literal["backbone", "mrp"]
#: the order in which rows were computed, and what came out, `[R, L, H]`
Computed = tuple[Sequence[int], Tensor]


class Networks(Protocol):
    """Computes forwards over groups of rows. `num_pages`: of its cache."""

    @property
    def num_pages(self) -> int:
        """Pages of its cache."""

    def forward(self, which: Which, group: Group) -> Computed:
        """The order that the group's rows were computed in, and what came out, `[R, L, H]`.

        For MRP the rows have anchors, and the next ones come out. Rows that only fill up stay the last.
        """


class Shapes(NamedTuple):
    """What is known of forwards before they come: their least number of rows, whether a row's shapes are its own."""

    least_rows: int
    same: bool


class LocalNetworks:
    """Networks whose layers are computed in this process."""

    def __init__(self, checkpoint: Checkpoint, num_pages: int, shapes: Shapes, execution: Execution) -> None:
        self._backbone, self._mrp = checkpoint.backbone, checkpoint.mrp
        self._mask, self._device = checkpoint.config.mask_token_id, checkpoint.device
        self._same_shapes = shapes.same
        self._cache = PagedCache(checkpoint.shard_config, num_pages, checkpoint.device, checkpoint.dtype)
        attention = resolve_backend(execution.attention, checkpoint.device, checkpoint.dtype)
        self._attention = attention_backend(self._cache, attention)
        self._graphs = _graphs_for(self._attention, execution, checkpoint.device, shapes.least_rows)
        self._networks: dict[Which, Network] = {"backbone": self._backbone_hidden, "mrp": self._mrp_hidden}

    @property
    def num_pages(self) -> int:
        """Pages of its cache."""
        return self._cache.num_pages

    def forward(self, which: Which, group: Group) -> Computed:
        """See `Networks.forward`."""
        rows, width, network = group.members, group.width, self._networks[which]
        if self._graphs is not None:
            states = self._graphs.run(network, rows, width, self._inputs(rows))
            if states is not None:
                return range(len(rows)), states
        attend = self._attention.prepare(rows, width)
        return attend.order, network(self._inputs([rows[number] for number in attend.order]), attend)

    def _inputs(self, rows: Sequence[Row]) -> Inputs:
        tensors = to_tensors(rows, self._mask, self._device)
        return Inputs(tensors.tokens, tensors.positions, anchors_of(rows))

    def _backbone_hidden(self, inputs: Inputs, attend: Attend) -> Tensor:
        """-> hidden states `[R, L, H]`."""
        hidden: Tensor = self._backbone(inputs.tokens, inputs.positions, attend, self._same_shapes)
        return hidden

    def _mrp_hidden(self, inputs: Inputs, attend: Attend) -> Tensor:
        """-> the next anchors `[R, L, H]`."""
        if self._mrp is None:
            raise SettingsError("this checkpoint has no MRP module")
        embedded, rotation = self._backbone.embed(inputs.tokens), self._backbone.rotation(inputs.positions)
        hidden: Tensor = self._mrp(embedded, inputs.anchors, rotation, attend)
        return hidden


@dataclass(frozen=True, slots=True)
class Execution:
    """How the networks are computed.

    `attention`: an implementation's name, `service/model/attention/registry.py`. `cuda_graphs`: whether forwards are
    replayed where that is possible. `capture`: how they are made repeatable; None: by CUDA graphs, on CUDA.
    `networks`: makes them, with the arguments of `LocalNetworks`.
    """

    attention: str = AUTO
    cuda_graphs: bool = True
    capture: Capture | None = None
    networks: Callable[[Checkpoint, int, Shapes, Execution], Networks] = field(default=LocalNetworks)


def _graphs_for(attention: AttentionBackend, execution: Execution, device: torch.device, least: int) -> Graphs | None:
    """None where the device has no graphs, the attention cannot be captured, or nobody wants them."""
    capture = execution.capture or (CudaCapture() if device.type == "cuda" else None)
    if capture is None or not execution.cuda_graphs or not isinstance(attention, GraphCapable):
        return None
    return Graphs(attention, capture, least)
