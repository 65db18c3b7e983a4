"""Forwards that are captured once and replayed: a CUDA graph starts all kernels of a forward by one call of the host.

A graph has fixed shapes and addresses. Rows are padded to the next size of a graph, inputs are copied to fixed
buffers, and the attention's tables are loaded into fixed tables (`GraphCapable`). `warm_up.py` has all graphs captured
before requests come; without it a graph is captured when its shape first comes. Padding rows see themselves and write
to no page, and their output is dropped.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor

from service.engine.memory_plan import GRAPH_ROWS
from service.model.attention import GraphAttention, GraphCapable, RowKv
from service.model.attention.tile_schedule import ScheduleShape, TileSchedule
from service.model.device import is_out_of_memory
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
    """A `Capture` by CUDA graphs, which share the memory of tensors that live only within a forward.

    All captures use one stream: cuBLAS keeps a workspace for every stream on which it has run.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
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
            if is_out_of_memory(error):
                raise torch.OutOfMemoryError(str(error)) from error
            if isinstance(error, RuntimeError):
                raise CaptureFailed(str(error)) from error
            raise
        return graph.replay, result

    def renew_pool(self) -> None:
        """Begins a pool anew. The memory of the old one is free once its graphs are gone."""
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

    A shape whose capture failed runs without a graph; other shapes are captured all the same. Where memory ran out, the
    shape is tried again when it comes again.
    """

    def __init__(self, attention: GraphCapable, capture: Capture, min_rows: int = 1) -> None:
        self._attention, self._capture = attention, capture
        self.sizes = sorted({*GRAPH_ROWS, min_rows})
        self._graphs: dict[tuple[NetworkCall, ScheduleShape], _Graph | None] = {}
        self._sealed = False

    def clear(self) -> None:
        """Drops all graphs, before tensors get other addresses. Their shapes are captured anew."""
        self._graphs.clear()
        self._sealed = False
        if isinstance(self._capture, CudaCapture):
            self._capture.renew_pool()

    def __len__(self) -> int:
        return sum(graph is not None for graph in self._graphs.values())

    def size(self, rows: int) -> int | None:
        """The size of the graph for a number of rows, or None if no graph is large enough."""
        index = bisect_left(self.sizes, rows)
        return self.sizes[index] if index < len(self.sizes) else None

    def is_known(self, network: NetworkCall, rows: Sequence[RowKv], width: int | None) -> bool:
        """Whether the rows have a graph, or can have none."""
        size = self.size(len(rows))
        if size is None:
            return True
        return (network, self._attention.capacity(self._attention.plan(rows, width, size), width)) in self._graphs

    def seal(self) -> None:
        """Captures nothing from now on. Shapes without a graph run without one."""
        self._sealed = True

    def run(self, network: NetworkCall, rows: Sequence[RowKv], width: int | None, inputs: Inputs) -> Tensor | None:
        """-> hidden states `[R, L, H]` of the rows, or None if there is no graph for them."""
        size = self.size(len(rows))
        if size is None:
            return None
        work = self._attention.plan(rows, width, size)
        shape = self._attention.capacity(work, width)
        graph = self._graphs.get((network, shape))
        if graph is None and not self._sealed and (network, shape) not in self._graphs:
            graph = _Graph(network, self._attention.for_graph(shape), size, inputs)
            try:
                graph.capture(inputs, work, self._capture)
            except CaptureFailed as error:
                graph = None
                _log.warning("forwards of %d rows run without a CUDA graph; its capture failed: %s", size, error)
            self._graphs[network, shape] = graph
        return None if graph is None else graph.run(inputs, work)


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
