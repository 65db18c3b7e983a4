"""Several ranks decode what one process decodes: the golden tokens, in fp32, and hidden states within 1e-5."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from service.decode.block import Block
from service.decode.modes import Speculative, Static
from service.engine import Engine, EngineConfig, EngineDeps, GenerationRequest
from service.engine.forward.model_forward import ExecutionConfig, ModelForward, ShapePolicy
from service.engine.forward.partition import RowGroup
from service.engine.forward.rows import Row
from service.errors import CheckpointError, OutOfMemory
from service.model import LoadOptions, load_checkpoint
from service.model.transfer import PackedTables
from service.parallel import TensorParallelExecutor
from tests.engine.helpers import CHEAP_ROWS
from tests.engine.test_golden import assert_golden, expected, requests
from tests.other_weights import other_weights
from tests.tiny import ALL_NAMES, EXPERTS_NAME, GOLDEN, GOLDEN_NAMES, LLADA2_NAME, LLADA22_NAME, golden


def engine_of(ranks: TensorParallelExecutor, name: str, **limits: Any) -> Engine:
    checkpoint = ranks.load(GOLDEN / name, LoadOptions())
    config = EngineConfig(**({"kv_cache_tokens": 4096} | limits))
    return Engine(checkpoint, config, deps=EngineDeps(costs=CHEAP_ROWS, ranks=ranks))


def a_request_of_each_mode(name: str) -> Iterable[tuple[dict[str, Any], GenerationRequest]]:
    pairs = zip(expected(name), requests(name), strict=True)
    return {entry["mode"]: (entry, request) for entry, request in pairs}.values()


def assert_decodes_golden(engine: Engine, name: str) -> None:
    for entry, done in zip(expected(name), engine.generate(requests(name)), strict=True):
        assert_golden(entry, done)


def assert_every_mode(engine: Engine, name: str) -> None:
    """Alone, and all in one batch."""
    for entry, request in a_request_of_each_mode(name):
        (done,) = engine.generate([request])
        assert_golden(entry, done)
    assert_decodes_golden(engine, name)


#: a dense checkpoint and one with experts; the others are slow tests
FAST = {GOLDEN_NAMES[2], LLADA2_NAME, LLADA22_NAME}
CHECKPOINTS = [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in ALL_NAMES]


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_every_mode_alone_and_all_in_one_batch(pair: TensorParallelExecutor, name: str) -> None:
    engine = engine_of(pair, name)
    assert_every_mode(engine, name)
    assert engine.state().kv_pages_used == 0


@pytest.mark.parametrize(
    ("name", "limits"),
    [
        (EXPERTS_NAME, {"deterministic": True}),
        (GOLDEN_NAMES[2], {"max_rows": 18, "prefix_cache": False, "async_scheduling": True}),
    ],
)
def test_the_tokens_do_not_depend_on_the_groups_of_rows(
    pair: TensorParallelExecutor, name: str, limits: dict[str, Any]
) -> None:
    assert_decodes_golden(engine_of(pair, name, **limits), name)


def test_pages_in_8_bits_hold_the_numbers_of_one_process(pair: TensorParallelExecutor) -> None:
    """A head has its own scale, so each rank rounds its heads as one process does. In float64: sums differ."""
    name, limits = GOLDEN_NAMES[2], EngineConfig(kv_cache_tokens=4096, kv_cache_dtype="int8")
    chosen = [request for _, request in a_request_of_each_mode(name)]
    part, whole = pair.load(GOLDEN / name, LoadOptions(torch.float64)), golden(name, torch.float64)
    ranks = Engine(part, limits, deps=EngineDeps(costs=CHEAP_ROWS, ranks=pair))
    alone = Engine(whole, limits, deps=EngineDeps(costs=CHEAP_ROWS))
    wanted = [done.token_ids for done in alone.generate(chosen)]
    assert [done.token_ids for done in ranks.generate(chosen)] == wanted


def test_drafts_are_lossless_where_each_rank_quantizes_its_part(pair: TensorParallelExecutor) -> None:
    name = GOLDEN_NAMES[2]
    checkpoint = pair.load(GOLDEN / name, LoadOptions(quantization="w8a8"))
    engine = Engine(checkpoint, EngineConfig(kv_cache_tokens=4096), deps=EngineDeps(costs=CHEAP_ROWS, ranks=pair))
    prompts = [request for entry, request in a_request_of_each_mode(name) if entry["mode"] == "static"]
    (static,) = engine.generate([replace(request, mode=Static()) for request in prompts])
    (drafted,) = engine.generate([replace(request, mode=Speculative(2)) for request in prompts])
    assert drafted.token_ids == static.token_ids


def hidden_of(networks: Any, group: RowGroup) -> torch.Tensor:
    with torch.inference_mode():
        forward = networks.plan("backbone", group, PackedTables(torch.device("cpu")))
        states = forward.run()
    back = torch.empty_like(states)
    back[list(forward.order)] = states
    return back


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_hidden_states_differ_by_rounding_alone(pair: TensorParallelExecutor, name: str) -> None:
    whole, part = load_checkpoint(GOLDEN / name), pair.load(GOLDEN / name, LoadOptions())
    made = (whole, 8, ShapePolicy(1, fixed_shapes=False), ExecutionConfig())
    alone, together = ModelForward(*made), pair.networks(part, *made[1:])
    size, pages = whole.config.block_size, [2, 0, 5]
    tokens = torch.randint(0, 500, (3, size), generator=torch.Generator().manual_seed(3)).tolist()
    rows = [Row(Block(tuple(row)), index, pages, writes_kv=index < 2) for index, row in enumerate(tokens)]
    for some in (rows[:2], rows[2:], rows):
        group = RowGroup(some, range(len(some)))
        torch.testing.assert_close(hidden_of(together, group), hidden_of(alone, group), rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("deterministic", [False, True])
def test_four_ranks(deterministic: bool) -> None:
    """More than there are key-value heads in three of the four checkpoints."""
    with TensorParallelExecutor(4, "cpu", deterministic=deterministic) as ranks:
        for name in ALL_NAMES:
            assert_every_mode(engine_of(ranks, name, deterministic=deterministic), name)


def test_all_ranks_take_other_weights(pair: TensorParallelExecutor, tmp_path: Path) -> None:
    """In the same processes, after a refusal that changes nothing."""
    name = GOLDEN_NAMES[0]
    engine, golden = engine_of(pair, name), requests(name)
    other = other_weights(tmp_path / "other", GOLDEN / name)
    with pytest.raises(CheckpointError, match="has shape"):
        pair.fetch([str(GOLDEN / GOLDEN_NAMES[1])], LoadOptions())
    assert_decodes_golden(engine, name)
    fresh = pair.fetch([str(other)], LoadOptions())
    engine.update_weights(lambda: pair.apply(fresh), 1)
    fresh = Engine(load_checkpoint(other), EngineConfig(kv_cache_tokens=4096), deps=EngineDeps(costs=CHEAP_ROWS))
    assert [answer.token_ids for answer in engine.generate(golden)] == [
        answer.token_ids for answer in fresh.generate(golden)
    ]


def test_all_ranks_sleep_and_wake_up(pair: TensorParallelExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after a rank had no memory: then all ranks have given theirs back."""
    name = GOLDEN_NAMES[0]
    engine, part = engine_of(pair, name), pair._checkpoint
    engine.sleep(2)
    pair.drop_weights()
    assert part.backbone.device.type == "meta"
    with monkeypatch.context() as patched:
        patched.setattr("service.parallel.executor.restore_weights", _no_memory)
        with pytest.raises(OutOfMemory):
            pair.restore_weights()
    assert part.backbone.device.type == "meta"
    pair.restore_weights()
    pair.apply(pair.fetch([str(GOLDEN / name)], LoadOptions()))
    engine.wake_up()
    assert_decodes_golden(engine, name)


def _no_memory(*_: object) -> None:
    raise OutOfMemory("no memory")
