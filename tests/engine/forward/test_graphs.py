"""Captured forwards on the CPU: buffers are filled and chosen as for CUDA, and replaying calls the function."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from service.decode.block import MASKED, Block
from service.engine import Engine, EngineConfig, EngineDeps
from service.engine.forward.graphs import Capture, CaptureFailed, Graphs, HostInputs, Inputs
from service.engine.forward.model_forward import ExecutionConfig
from service.engine.forward.partition import BatchPartition, FixedShapes, fixed_shapes_for
from service.engine.forward.row_states import StateTable
from service.engine.forward.rows import Anchor, ForwardOutput, Row
from service.engine.forward.runner import ModelRunner
from service.engine.request import SamplingParams
from service.model import Checkpoint, LoadOptions, load_checkpoint
from service.model.attention import attention_backend
from service.model.transfer import PackedTables
from tests.engine.test_golden import assert_golden
from tests.engine.test_triton import NAME, short
from tests.model.attention_world import Kind, Shape, World
from tests.tiny import GOLDEN, tiny_checkpoint


@pytest.fixture(scope="module", autouse=True)
def device(triton_device: str) -> str:
    return triton_device


class Eagerly:
    """A `Capture` that runs the function again instead of replaying it; the result stays where it is."""

    def __init__(self) -> None:
        self.captured, self.replayed = 0, 0

    def __call__(self, function: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        self.captured += 1
        result = function().clone()

        def replay() -> None:
            self.replayed += 1
            result.copy_(function())

        return replay, result


class Plans:
    """An attention of which only plans matter: each is the number of its rows and the places it was made of."""

    def __init__(self) -> None:
        self.loaded: list[Any] = []

    def plan(self, rows_kv: Sequence[Any], width: int | None = None, rows: int | None = None) -> Any:
        return rows, tuple(rows_kv)

    def capacity(self, work: Any, width: int | None) -> Any:
        return work[0], width

    def packed(self, work: Any, capacity: Any) -> Any:
        self.loaded.append(work)
        return np.array([*work[1], 0, 0, 0, 0], np.int32)

    def max_packed(self, capacity: Any) -> int:
        return int(capacity[0]) + 4

    def for_graph(self, capacity: Any, table: Tensor) -> Tensor:
        return table


def doubled(inputs: Inputs, attend: Any) -> Tensor:
    states = torch.stack([inputs.tokens, inputs.positions], -1).double() * 2
    return states if inputs.anchors is None else states + inputs.anchors


def inputs(rows: int) -> Inputs:
    tokens = torch.arange(1, rows * 4 + 1).view(rows, 4)
    return Inputs(tokens, tokens + 100)


def made(attention: Any, capture: Any, **options: Any) -> Graphs:
    return Graphs(attention, StateTable(1, 4, 3, torch.device("cpu")), capture, **options)


def run(graphs: Graphs, rows: int, width: int | None = None, *, anchored: bool = False, network: Any = doubled) -> Any:
    tokens, positions = inputs(rows).tokens.numpy(), inputs(rows).positions.numpy()
    tables = PackedTables(torch.device("cpu"))
    hidden = torch.full((1, 4, 2), 0.5, dtype=torch.float64)
    anchors = [Anchor(ForwardOutput(hidden), 0)] * rows if anchored else None
    planned = graphs.plan(network, range(rows), width, HostInputs(tokens, positions, anchors), tables)
    return None if planned is None else graphs.run(planned)


class TestBookkeeping:
    def test_there_is_no_graph_for_more_rows_than_the_largest(self) -> None:
        graphs = made(Plans(), Eagerly())
        assert graphs.size(513) is None
        assert run(graphs, 513) is None

    def test_forwards_of_one_size_share_a_graph_and_its_buffers(self) -> None:
        capture, attention = Eagerly(), Plans()
        graphs = made(attention, capture)
        first, second = (run(graphs, rows) for rows in (8, 6))
        assert (capture.captured, capture.replayed) == (1, 2)
        assert first is not None
        assert second is not None
        assert torch.equal(first, doubled(inputs(8), None))  # the second run has not touched it
        assert torch.equal(second, doubled(inputs(6), None))
        assert attention.loaded[-1] == (8, tuple(range(6)))

    def test_other_sizes_widths_and_networks_have_graphs_of_their_own(self) -> None:
        capture = Eagerly()
        graphs = made(Plans(), capture)
        for rows, width, anchored in ((2, None, False), (4, None, False), (4, 2, False), (4, 4, False)):
            assert run(graphs, rows, width, anchored=anchored) is not None
        other = run(graphs, 4, anchored=True, network=partial(doubled))
        assert torch.equal(other, doubled(inputs(4), None) + 0.5)
        assert capture.captured == 5

    def test_a_failed_capture_is_logged_once_and_concerns_its_shape_alone(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        eagerly = Eagerly()

        def capture(function: Callable[[], Tensor]) -> Any:
            if len(function()) == 4:
                raise CaptureFailed("not allowed in a graph")
            return eagerly(function)

        graphs = made(Plans(), capture)
        assert run(graphs, 4) is run(graphs, 4) is None
        assert caplog.text.count("not allowed in a graph") == 1
        assert run(graphs, 2) is not None
        assert len(graphs) == 1

    def test_a_shape_without_memory_is_captured_when_it_comes_again(self) -> None:
        errors, eagerly = [torch.OutOfMemoryError("full")], Eagerly()

        def capture(function: Callable[[], Tensor]) -> Any:
            if errors:
                raise errors.pop()
            return eagerly(function)

        graphs = made(Plans(), capture)
        with pytest.raises(torch.OutOfMemoryError):
            run(graphs, 4)
        assert run(graphs, 4) is not None

    def test_sealed_graphs_capture_nothing(self) -> None:
        capture = Eagerly()
        graphs = made(Plans(), capture)
        run(graphs, 4)
        graphs.seal()
        assert run(graphs, 3) is not None
        assert run(graphs, 9) is None
        assert capture.captured == 1


@pytest.mark.parametrize("width", [None, 12])
def test_rows_that_fill_up_change_nothing_and_write_nowhere(device: str, width: int | None) -> None:
    """Every page but those of the rows' own final blocks stays as it was, and the rows' attention is right."""
    world = World(Kind(4, (4, 2), 16, torch.float32, device), [Shape(5, 2, 1), Shape(0, 1, 3), Shape(9, 0, 1)], 3)
    attention, rows = attention_backend(world.cache, "triton"), world.all_rows
    work = attention.plan(rows, width, 16)
    shape = attention.capacity(work, width)
    table = torch.zeros(attention.max_packed(shape), dtype=torch.int32, device=device)
    static = attention.for_graph(shape, table)
    before = world.cache.keys.clone(), world.cache.values.clone()
    for taken in (rows, rows[2:]):  # another forward of the same shape
        work = attention.plan(taken, width, 16)
        packed = attention.packed(work, shape)
        table[: len(packed)] = torch.from_numpy(packed).to(device)
        padded = [
            torch.cat([part, torch.randn(16 - len(taken), *part.shape[1:]).to(part)]) for part in world.inputs(taken)
        ]
        out = static(1, *padded)[: len(taken)]
        wanted = torch.stack([row.wanted for row in taken])
        torch.testing.assert_close(out.double().cpu(), wanted, rtol=0, atol=2e-6)
    written = [row.pages[row.index] for row in rows if row.writes_kv]
    unwritten = [page for page in range(world.cache.keys.shape[1]) if page not in written]
    for cache, old in zip((world.cache.keys, world.cache.values), before, strict=True):
        assert torch.equal(cache[:, unwritten].nan_to_num(7.0), old[:, unwritten].nan_to_num(7.0))
        assert torch.equal(cache[0].nan_to_num(7.0), old[0].nan_to_num(7.0))
        assert not cache[1, written].isnan().any()


@pytest.mark.parametrize("deterministic", [False, True])
def test_golden_decodes_with_replayed_forwards(device: str, deterministic: bool) -> None:
    checkpoint = load_checkpoint(GOLDEN / NAME, LoadOptions(device=device))
    capture = Eagerly()

    def runner(checkpoint: Checkpoint, pages: int, partition: BatchPartition, candidates: int, *_: Any) -> ModelRunner:
        few = FixedShapes(3, 24) if deterministic else partition
        return ModelRunner(checkpoint, pages, few, candidates, ExecutionConfig("triton", capture=capture))

    limits = EngineConfig(kv_cache_tokens=512, max_rows=64, deterministic=deterministic)
    deps = EngineDeps(runner=runner)
    mode = "remask" if deterministic else "speculative"
    pairs = [pair for pair in short(tokens=6) if pair[0]["mode"] == mode]
    done = Engine(checkpoint, limits, deps=deps).generate([request for _, request in pairs])
    for (entry, _), completion in zip(pairs, done, strict=True):
        assert_golden(entry, completion)
    assert 0 < capture.captured < capture.replayed


def test_graphs_can_be_switched_off(device: str) -> None:
    def refuse(function: Callable[[], Tensor]) -> Any:
        raise AssertionError

    capture: Capture = refuse
    row = Row(Block((MASKED,) * 4), 0, [0], writes_kv=False, sampling=SamplingParams())
    for execution in (
        ExecutionConfig("triton", cuda_graphs=False, capture=capture),
        ExecutionConfig("eager", capture=capture),
    ):
        checkpoint = tiny_checkpoint(dtype=torch.float32)
        ModelRunner(checkpoint, 4, fixed_shapes_for("cpu", 4), 0, execution).begin("backbone", [row])()
