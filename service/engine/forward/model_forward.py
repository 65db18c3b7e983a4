"""The networks of a checkpoint over one paged cache: tokens in, hidden states out.

Knows tensors, rows and their KV pages; no sampling. With several ranks (`service/parallel`) each has its part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from service.engine.forward.draft_vocabulary import choose_candidates
from service.engine.forward.graphs import Capture, CudaCapture, GraphForward, Graphs, HostInputs, Inputs, NetworkCall
from service.engine.forward.logits_sampler import TritonLogitsSampler
from service.engine.forward.partition import RowGroup
from service.engine.forward.replays import ReplayBuffers, ReplayTables, SampleAll
from service.engine.forward.row_states import StateTable, lines_of
from service.engine.forward.rows import AnchorRows, Row, anchors_of, tokens_and_positions
from service.errors import SettingsError
from service.model.attention import AUTO, AttentionBackend, PagedCache, TritonBackend, attention_backend
from service.model.checkpoint import Checkpoint
from service.model.experts import waits_for_experts
from service.model.layer_ops import PagedAttend
from service.model.layers import Attend
from service.model.transfer import PackedTables

#: one of a checkpoint's networks
Network = Literal["backbone", "mrp"]


class PlannedForward(NamedTuple):
    """A forward over a group of rows that is planned on the host.

    `order`: the order in which the group's rows are computed; padding rows stay last. `run`: sends all tables, and
    begins the forward. -> hidden states `[R, L, H]` in this order. For MRP they are the next anchors.
    """

    order: Sequence[int]
    run: Callable[[], Tensor]


class ShapePolicy(NamedTuple):
    """The shapes of all forwards. `min_rows`: their minimum of rows. `fixed_shapes`: whether shapes are fixed."""

    min_rows: int
    fixed_shapes: bool


class ModelForward:
    """Computes forwards over groups of rows.

    `num_pages`: the pages of its KV cache. `states`: those that the device knows first. `graphs`: the CUDA graphs of
    forwards; None if they are not captured. `eager_forwards`: the number of forwards on CUDA without a graph. The
    engine resets it.
    """

    def __init__(self, checkpoint: Checkpoint, num_pages: int, shapes: ShapePolicy, execution: ExecutionConfig) -> None:
        self._backbone, self._mrp = checkpoint.backbone, checkpoint.mrp
        self._mask, self._device = checkpoint.config.mask_token_id, checkpoint.device
        self._edit_tokens = checkpoint.config.edit_token_ids or ()
        self._fixed_shapes = shapes.fixed_shapes
        self.states = StateTable(execution.max_running, checkpoint.config.block_size, self._mask, checkpoint.device)
        self._cache = PagedCache(
            checkpoint.shard_config, num_pages, checkpoint.device, checkpoint.dtype, execution.kv_cache_dtype
        )
        self._attention = attention_backend(self._cache, execution.attention)
        captured = execution if shapes.fixed_shapes or not waits_for_experts(checkpoint.backbone) else None
        self.graphs = _graphs_for(self._attention, self.states, captured, shapes.min_rows)
        self.num_pages, self.eager_forwards = num_pages, 0
        self._networks: dict[Network, NetworkCall] = {"backbone": self._backbone_hidden, "mrp": self._mrp_hidden}
        # one object each, as a part of keys
        self._denoising: NetworkCall = partial(self._replayed, self._backbone_hidden, self._sample)
        self._drafting: NetworkCall = partial(self._replayed, self._mrp_hidden, self._choose_candidates)
        self._refining: NetworkCall = partial(self._replayed, self._mrp_hidden, self._sample)

    def plan(self, network: Network, group: RowGroup, tables: PackedTables) -> PlannedForward:
        """Plans a forward over a group. Its tables come first in `tables`. For MRP the rows have anchors."""
        rows, width, call, graphs = group.members, group.width, self._networks[network], self.graphs
        planned = None if graphs is None else graphs.plan(call, rows, width, self._inputs(rows), tables)
        if graphs is None or planned is None:
            return self._eager(call, rows, width, tables)

        def run() -> Tensor:
            hidden = graphs.run(planned)
            return self._eager(call, rows, width, PackedTables(self._device)).run() if hidden is None else hidden

        return PlannedForward(range(planned.num_rows), run)

    def plan_replays(self, group: RowGroup, replays: ReplayTables, tables: PackedTables) -> GraphForward | None:
        """Plans replays over a group of rows, for MRP with anchors. None if there is no graph for them."""
        if self.graphs is None:
            return None
        inputs = self._inputs(group.members)._replace(replays=replays)
        if not any(row.on_device for row in group.members):
            inputs = inputs._replace(lines=None)
        if inputs.anchors is None:
            call = self._denoising
        else:
            call = self._refining if replays.candidates is None else self._drafting
        return self.graphs.plan(call, group.members, group.width, inputs, tables)

    def _eager(
        self,
        call: NetworkCall,
        rows: Sequence[Row],
        width: int | None,
        tables: PackedTables,
    ) -> PlannedForward:
        self.eager_forwards += self._device.type == "cuda"
        attend = self._attention.prepare(rows, width)
        inputs = self._inputs([rows[index] for index in attend.order])
        tokens, positions = tables.add(inputs.tokens), tables.add(inputs.positions)
        anchors = None if inputs.anchors is None else AnchorRows(inputs.anchors, tables)
        lines = None if inputs.lines is None else tables.add(inputs.lines)

        def run() -> Tensor:
            tables.send()
            if lines is not None:
                if not isinstance(attend, PagedAttend):
                    raise AssertionError("only the attention that reads pages where they lie keeps states")
                self.states.place_states(tokens.tensor, lines.tensor, attend)
            return call(Inputs(tokens.tensor, positions.tensor, None if anchors is None else anchors.hidden()), attend)

        return PlannedForward(attend.order, run)

    def seal(self) -> None:
        if self.graphs is not None:
            self.graphs.seal()

    def is_known(self, network: Network, group: RowGroup) -> bool:
        return self.graphs is not None and self.graphs.is_known(self._networks[network], group.members, group.width)

    def release_cache(self) -> None:
        """Gives the memory of the KV cache and of CUDA graphs back. No forward may run before `restore_cache`."""
        if self.graphs is not None:
            self.graphs.clear()
        self._cache.release()

    def restore_cache(self) -> None:
        """Takes the memory of the KV cache again, all pages empty. OutOfMemory changes nothing."""
        self._cache.restore()

    def _inputs(self, rows: Sequence[Row]) -> HostInputs:
        lines = lines_of(rows) if self._device.type == "cuda" else None
        return HostInputs(*tokens_and_positions(rows, self._mask), anchors_of(rows), lines)

    def _backbone_hidden(self, inputs: Inputs, attend: Attend) -> Tensor:
        """-> hidden states `[R, L, H]`."""
        hidden: Tensor = self._backbone(inputs.tokens, inputs.positions, attend, self._fixed_shapes)
        return hidden

    def _mrp_hidden(self, inputs: Inputs, attend: Attend) -> Tensor:
        """-> the next anchors `[R, L, H]`."""
        if self._mrp is None:
            raise SettingsError("this checkpoint has no MRP module")
        embedded, rotation = self._backbone.embed(inputs.tokens), self._backbone.rotation(inputs.positions)
        hidden: Tensor = self._mrp(embedded, inputs.anchors, rotation, attend)
        return hidden

    def _replayed(self, network: NetworkCall, sample: SampleAll, inputs: Inputs, attend: Attend) -> Tensor:
        """-> hidden states or the next anchors `[R, L, H]`. The next replay finds its inputs in place.

        Rows of finished blocks keep their anchors, so that each forward writes the same to their pages.
        """
        hidden, anchors, replays = network(inputs, attend), inputs.anchors, inputs.replays
        if replays is None or not isinstance(attend, PagedAttend):
            raise AssertionError("only graphs are replayed")
        if anchors is not None:
            final = attend.final_rows[0][: len(anchors), None, None] > 0
            anchors.copy_(torch.where(final, anchors, hidden))
        replays.reveal(hidden, inputs.tokens, sample, self.states)
        return hidden

    def _choose_candidates(self, flat: Tensor, replays: ReplayBuffers) -> Tensor:
        if replays.candidates is None:
            raise AssertionError("replays of drafts have candidates")
        return choose_candidates(flat, self._backbone.head, replays.candidates, replays.positions, noise=True)

    def _sample(self, flat: Tensor, replays: ReplayBuffers) -> Tensor:
        sampler = TritonLogitsSampler(self._mask)
        return sampler.sample_all(self._backbone.logits(flat), replays.positions, self._edit_tokens)


@dataclass(frozen=True, slots=True)
class ExecutionConfig:
    """The execution of the networks.

    `attention`: a backend's name (`service/model/attention/registry.py`). `kv_cache_dtype`: the form of KV pages
    (`service/model/attention/pages.py`). `capture`: captures a forward; None: CUDA
    graphs, on CUDA. `networks`: makes the networks, with the arguments of `ModelForward`. `agree`: whether all ranks
    say yes; None: there is one rank. `max_running`: the most requests whose states the device keeps.
    """

    attention: str = AUTO
    cuda_graphs: bool = True
    capture: Capture | None = None
    networks: Callable[[Checkpoint, int, ShapePolicy, ExecutionConfig], ModelForward] = field(default=ModelForward)
    agree: Callable[[bool], bool] | None = None
    max_running: int = 8
    kv_cache_dtype: str = AUTO


def _graphs_for(
    attention: AttentionBackend, states: StateTable, execution: ExecutionConfig | None, min_rows: int
) -> Graphs | None:
    """The graphs. None if the device has none, the attention cannot be captured, or the configuration excludes them."""
    if execution is None:
        return None
    device, several_ranks = states.tokens.device, execution.agree is not None
    capture = execution.capture
    if capture is None and device.type == "cuda":
        capture = CudaCapture(device, several_ranks=several_ranks)
    if capture is None or not execution.cuda_graphs or not isinstance(attention, TritonBackend):
        return None
    return Graphs(attention, states, capture, min_rows, execution.agree or bool)
