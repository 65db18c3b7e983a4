"""Forwards that are captured once and replayed: a CUDA graph starts all kernels of a forward by one call of the host.

A graph has fixed shapes and addresses. Rows are padded to the next size of a graph, inputs are copied to fixed
buffers, and the attention's tables are loaded into fixed tables (`GraphCapable`). A graph is captured when its shape
first comes. Padding rows see themselves and write to no page, and their output is dropped.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from service.engine.memory_plan import GRAPH_ROWS
from service.model.attention import GraphAttention, GraphCapable, RowKv
from service.model.attention.tile_schedule import ScheduleShape, TileSchedule
from service.model.layers import Attend

_log = logging.getLogger(__name__)

#: Runs a function and makes it repeatable: -> a function that repeats it, and the tensor that then holds its result.
Capture = Callable[[Callable[[], Tensor]], tuple[Callable[[], None], Tensor]]


class CaptureFailed(Exception):
    """A forward that runs but cannot be captured."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """The inputs of a network: tokens and positions `[R, L]`, for MRP the anchors `[R, L, H]`."""

    tokens: Tensor
    positions: Tensor
    anchors: Tensor | None = None


#: -> hidden states `[R, L, H]`
NetworkCall = Callable[[Inputs, Attend], Tensor]


class CudaCapture:
    """A `Capture` by CUDA graphs, which share the memory of tensors that live only within a forward."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, function: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        """Runs it first, so that kernels and workspaces are ready. CaptureFailed if only capturing fails."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            function()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        try:
            # Other threads, such as one that asks for free memory, do not disturb it.
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                result = function()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise CaptureFailed(str(error)) from error
        return graph.replay, result


class Graphs:
    """The graphs of a runner's networks. `min_rows`: one more graph size besides `GRAPH_ROWS`."""

    def __init__(self, attention: GraphCapable, capture: Capture, min_rows: int = 1) -> None:
        self._attention, self._capture = attention, capture
        self._sizes = sorted({*GRAPH_ROWS, min_rows})
        self._graphs: dict[tuple[NetworkCall, ScheduleShape], _Graph] = {}
        self._works = True

    def size(self, rows: int) -> int | None:
        """The size of the graph for a number of rows, or None if no graph is large enough."""
        index = bisect_left(self._sizes, rows)
        return self._sizes[index] if self._works and index < len(self._sizes) else None

    def run(self, network: NetworkCall, rows: Sequence[RowKv], width: int | None, inputs: Inputs) -> Tensor | None:
        """-> hidden states `[R, L, H]` of the rows, or None if there is no graph for them."""
        size = self.size(len(rows))
        if size is None:
            return None
        work = self._attention.plan(rows, width, size)
        capacity = self._attention.capacity(work, width)
        graph = self._graphs.get((network, capacity))
        if graph is None:
            try:
                graph = _Graph(network, self._attention.for_graph(capacity), size, inputs)
                graph.capture(inputs, work, self._capture)
            except CaptureFailed as error:
                self._works = False
                _log.warning("forwards run without CUDA graphs, because one could not be captured: %s", error)
                return None
            self._graphs[network, capacity] = graph
        return graph.run(inputs, work)


class _Graph:
    """One captured forward over `size` rows, and the buffers it reads."""

    def __init__(self, network: NetworkCall, attend: GraphAttention, size: int, like: Inputs) -> None:
        self._network, self._attend = network, attend
        self._inputs = Inputs(
            _buffer(like.tokens, size),
            _buffer(like.positions, size),
            None if like.anchors is None else _buffer(like.anchors, size),
        )

    def capture(self, first: Inputs, work: TileSchedule, capture: Capture) -> None:
        """Captures with real inputs: capturing runs the forward, which writes the pages of final blocks."""
        self._load(first, work)
        self._replay, self._result = capture(lambda: self._network(self._inputs, self._attend))

    def run(self, inputs: Inputs, work: TileSchedule) -> Tensor:
        """The forward over other inputs of the same shape. The next run does not overwrite the result."""
        self._load(inputs, work)
        self._replay()
        return self._result[: len(inputs.tokens)].clone()

    def _load(self, inputs: Inputs, work: TileSchedule) -> None:
        count = len(inputs.tokens)
        self._inputs.tokens[:count].copy_(inputs.tokens)
        self._inputs.positions[:count].copy_(inputs.positions)
        if self._inputs.anchors is not None and inputs.anchors is not None:
            self._inputs.anchors[:count].copy_(inputs.anchors)
        self._attend.load(work)


def _buffer(like: Tensor, size: int) -> Tensor:
    return like.new_zeros(size, *like.shape[1:])
