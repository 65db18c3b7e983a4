"""Forwards that are captured once and replayed: a CUDA graph starts all kernels of a forward by one call of the host.

A graph has fixed shapes and addresses. Rows are padded to the next size of a graph; padding rows see themselves, write
to no page, and their output is dropped. One copy sends all tables of a forward to a fixed buffer, the inputs and the
attention's table (`TritonBackend`) first. `warm_up.py` has all graphs captured before requests come; without it a graph
is captured when its shape first comes.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from service.engine.forward.replays import ReplayBuffers, ReplayResults, ReplayTables, SentReplays
from service.engine.forward.row_states import StateTable
from service.engine.forward.rows import Anchor, AnchorRows
from service.engine.memory_plan import GRAPH_ROWS
from service.model.attention import RowKv, TritonBackend
from service.model.attention.tile_schedule import ScheduleShape
from service.model.device import is_out_of_memory
from service.model.layer_ops import PagedAttend
from service.model.layers import Attend
from service.model.transfer import HostCopies, PackedTables, SentTable

_log = logging.getLogger(__name__)

_Number = TypeVar("_Number", np.int32, np.int64)

#: Runs a function and makes it repeatable: -> a function that repeats it, and the tensor that then holds its result.
Capture = Callable[[Callable[[], Tensor]], tuple[Callable[[], None], Tensor]]

#: Bytes of a graph's buffer for the sampler's tables, for each position of a block. A longer table is sent separately.
_POSITION_BYTES = 64


class CaptureFailed(Exception):
    """A forward that runs but cannot be captured."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """The inputs of a network: tokens and positions `[R, L]`, for MRP the anchors `[R, L, H]`.

    `replays`: the buffers of replays, each of which sets the tokens and the anchors of the next one.
    """

    tokens: Tensor
    positions: Tensor
    anchors: Tensor | None = None
    replays: ReplayBuffers | None = None


#: -> hidden states `[R, L, H]`
NetworkCall = Callable[[Inputs, Attend], Tensor]


#: a network, and the shape of its attention
GraphKey = tuple[NetworkCall, ScheduleShape]


class HostInputs(NamedTuple):
    """The inputs of a network on the host: tokens and positions `[R, L]`, for MRP the anchors.

    `lines`: as of `lines_of`. `replays`: the tables of replays.
    """

    tokens: NDArray[np.int32]
    positions: NDArray[np.int64]
    anchors: Sequence[Anchor] | None = None
    lines: NDArray[np.int32] | None = None
    replays: ReplayTables | None = None


class CudaCapture:
    """A `Capture` by CUDA graphs, which share the memory of tensors that live only within a forward.

    All captures use one stream: cuBLAS keeps a workspace for every stream on which it has run. `several_ranks`: whether
    other ranks capture the same forward. Then a capture without memory is a failed one.
    """

    def __init__(self, device: torch.device, *, several_ranks: bool = False) -> None:
        self._device, self._several_ranks = device, several_ranks
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)

    def __call__(self, function: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        """Runs it first, so that kernels and workspaces are ready. CaptureFailed if only capturing fails.

        OutOfMemoryError if there is no memory. Other captures and allocations go on after any error.
        """
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            function()
        current.wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        try:
            # Other threads, such as one that asks for free memory, do not disturb it.
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
                result = function()
        except Exception as error:
            self._abandon(current)
            if is_out_of_memory(error) and not self._several_ranks:
                raise torch.OutOfMemoryError(str(error)) from error
            if isinstance(error, RuntimeError):
                raise CaptureFailed(str(error)) from error
            raise
        return graph.replay, result

    def renew_pool(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def _abandon(self, stream: torch.cuda.Stream) -> None:
        """Ends a failed capture by hand, and begins a pool anew.

        If a capture ends by an error, torch leaves the capture's stream current. Torch before 2.13 also leaves the pool
        open: all later allocations would go there, and `torch.cuda.empty_cache` would fail.
        """
        torch.cuda.set_stream(stream)
        with suppress(RuntimeError):  # torch has closed the pool
            torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), self._pool)  # noqa: SLF001 - there is no public function
        self.renew_pool()


class Graphs:
    """The graphs of a runner's networks. `min_rows`: one more graph size besides `GRAPH_ROWS`.

    A shape whose capture failed runs without a graph. Where memory ran out, it is tried again. `agree`: whether all
    ranks say yes. If the capture of one rank fails, none keeps the graph: a graph's operations between ranks are as
    large as its rows.
    """

    def __init__(
        self,
        attention: TritonBackend,
        states: StateTable,
        capture: Capture,
        min_rows: int = 1,
        agree: Callable[[bool], bool] = bool,
    ) -> None:
        self._attention, self._states, self._capture, self._agree = attention, states, capture, agree
        self.sizes = sorted({*GRAPH_ROWS, min_rows})
        self._graphs: dict[GraphKey, _Graph | None] = {}
        self._buffers: dict[int, Tensor] = {}
        self._replays: dict[tuple[NetworkCall, int], ReplayBuffers] = {}
        self._sealed = False

    def clear(self) -> None:
        """Drops the graphs and all that they read and write."""
        for buffers in (self._graphs, self._buffers, self._replays):
            buffers.clear()
        self._attention.release()
        self._sealed = False
        if isinstance(self._capture, CudaCapture):
            self._capture.renew_pool()

    def __len__(self) -> int:
        return sum(graph is not None for graph in self._graphs.values())

    def size(self, rows: int) -> int | None:
        index = bisect_left(self.sizes, rows)
        return self.sizes[index] if index < len(self.sizes) else None

    def is_known(self, network: NetworkCall, rows: Sequence[RowKv], width: int | None) -> bool:
        shape = self.shape(rows, width)
        return shape is None or (network, shape) in self._graphs

    def shape(self, rows: Sequence[RowKv], width: int | None) -> ScheduleShape | None:
        """The shape of the graphs of rows. None if they have none."""
        size = self.size(len(rows))
        return None if size is None else self._attention.capacity(self._attention.plan(rows, width, size), width)

    def seal(self) -> None:
        self._sealed = True

    def plan(
        self, network: NetworkCall, rows: Sequence[RowKv], width: int | None, inputs: HostInputs, tables: PackedTables
    ) -> GraphForward | None:
        size = self.size(len(rows))
        if size is None:
            return None
        schedule = self._attention.plan(rows, width, size)
        capacity = self._attention.capacity(schedule, width)
        if capacity is None:
            return None
        key = network, capacity
        if self._graphs.get(key) is None and (self._sealed or key in self._graphs):
            return None
        tokens, positions = tables.add(_padded(inputs.tokens, size)), tables.add(_padded(inputs.positions, size))
        params = None if inputs.replays is None else tables.add(_padded(inputs.replays.params, size))
        attention = tables.add(self._attention.packed(schedule, key[1]))
        graph_bytes = tables.num_bytes
        anchors = None if inputs.anchors is None else AnchorRows(inputs.anchors, tables)
        lines = None if inputs.lines is None else tables.add(inputs.lines)
        replays = None
        if inputs.replays is not None and params is not None:
            slots = None if inputs.replays.slots is None else tables.add(_padded(inputs.replays.slots, size))
            replays = SentReplays(params, slots, inputs.replays.candidates)
        graph_tables = tokens, positions, attention
        return GraphForward(
            key, graph_tables, len(rows), anchors, lines, replays, tables=tables, graph_bytes=graph_bytes
        )

    def run(self, forward: GraphForward) -> Tensor | None:
        """-> hidden states `[R, L, H]` of a planned forward. None if its capture fails."""
        graph = self._ready(forward)
        return None if graph is None else graph.replay(forward.num_rows)[0]

    def run_replays(self, forward: GraphForward, count: int, copies: HostCopies) -> ReplayResults | None:
        """Runs `count` replays. `copies`: get the values. None if the capture fails."""
        graph = self._ready(forward)
        return None if graph is None else graph.replay_and_reveal(forward.num_rows, count, copies)

    def _ready(self, forward: GraphForward) -> _Graph | None:
        """The captured graph of a forward, with its tables and inputs. None if its capture fails."""
        graph = self._graphs.get(forward.key)
        if graph is None:
            graph = self._made(forward)
        graph.load(forward)
        if forward.key not in self._graphs:
            states = self._states.tokens.clone()
            try:
                problem = graph.capture(self._capture)
            finally:
                self._states.tokens.copy_(states)  # the forward has run once, and is to run again
            if not self._agree(problem is None):
                self._graphs[forward.key] = None
                size, reason = len(forward.graph_tables[0].host), problem or "another rank has failed"
                _log.warning("forwards of %d rows run without a CUDA graph; its capture failed: %s", size, reason)
                return None
            self._graphs[forward.key] = graph
            if forward.replays is not None:  # its inputs, too, have changed
                graph.load(forward)
        return graph

    def _made(self, forward: GraphForward) -> _Graph:
        """A graph that is not captured yet. Graphs share buffers, since forwards run one after another."""
        (network, shape), (tokens, positions, attention) = forward.key, forward.graph_tables
        num_bytes = attention.start + 4 * self._attention.max_packed(shape) + _POSITION_BYTES * tokens.host.size
        size = 1 << (num_bytes - 1).bit_length()
        if size not in self._buffers:
            self._buffers[size] = torch.zeros(size, dtype=torch.uint8, device=self._states.tokens.device)
        buffer = self._buffers[size]
        attend = self._attention.for_graph(shape, buffer[attention.start :].view(torch.int32))
        like = None if forward.anchors is None else forward.anchors.like
        anchors = None if like is None else like.new_zeros(len(tokens.host), *like.shape[1:])
        replays = None
        if forward.replays is not None:
            params, (rows, length) = forward.replays.params.within(buffer), tokens.host.shape
            if (network, rows) not in self._replays:
                self._replays[network, rows] = ReplayBuffers.like(params, length, forward.replays.candidates, anchors)
            replays = replace(self._replays[network, rows], params=params)
        inputs = Inputs(tokens.within(buffer), positions.within(buffer), anchors, replays)
        return _Graph(network, attend, buffer, inputs, self._states)


@dataclass(frozen=True, slots=True)
class GraphForward:
    """A planned forward by a graph. `graph_tables` (tokens, positions, attention) are the first bytes of `tables`."""

    key: GraphKey
    graph_tables: tuple[SentTable, SentTable, SentTable]
    num_rows: int
    anchors: AnchorRows | None
    lines: SentTable | None
    replays: SentReplays | None
    tables: PackedTables
    graph_bytes: int


def _padded(table: NDArray[_Number], size: int) -> NDArray[_Number]:
    padded = np.zeros((size, *table.shape[1:]), table.dtype)
    padded[: len(table)] = table
    return padded


class _Graph:
    """One captured forward, and the tensors it reads. `inputs`, but for the anchors, are views of `buffer`."""

    def __init__(
        self, network: NetworkCall, attend: PagedAttend, buffer: Tensor, inputs: Inputs, states: StateTable
    ) -> None:
        self._network, self._attend, self._buffer, self._inputs, self._states = network, attend, buffer, inputs, states

    def load(self, forward: GraphForward) -> None:
        """Sends all tables, and sets the inputs. Capturing needs real ones: it runs the forward, which writes pages."""
        forward.tables.send(self._buffer, forward.graph_bytes)
        if forward.lines is not None:
            self._states.place_states(self._inputs.tokens, forward.lines.tensor, self._attend)
        if forward.anchors is not None and self._inputs.anchors is not None:
            forward.anchors.hidden(self._inputs.anchors[: forward.num_rows])
        if forward.replays is not None and self._inputs.replays is not None:
            self._inputs.replays.load(forward.replays)

    def capture(self, capture: Capture) -> CaptureFailed | None:
        try:
            self._replay, self._result = capture(lambda: self._network(self._inputs, self._attend))
        except CaptureFailed as error:
            return error
        return None

    def replay(self, num_rows: int, count: int = 1) -> Tensor:
        """-> hidden states or anchors of each of `count` replays, `[K, R, L, H]`."""
        replays = self._inputs.replays
        hidden = self._result[None] if replays is None or replays.hidden is None else replays.hidden[:count]
        hidden = hidden[:, :num_rows]
        out = torch.empty_like(hidden)  # first: replays that have no memory reveal nothing
        for _ in range(count):
            self._replay()
        return out.copy_(hidden)

    def replay_and_reveal(self, num_rows: int, count: int, copies: HostCopies) -> ReplayResults:
        if self._inputs.replays is None:
            raise AssertionError("the graph reveals nothing")
        values = copies.add([self._inputs.replays.values[:count]])  # first, as it takes memory
        return ReplayResults(values, self.replay(num_rows, count))
