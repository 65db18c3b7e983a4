"""Speed predicted from bytes and operations: what is added up, and what `auto` makes of it."""

from __future__ import annotations

import pytest

from benchmarks.floor import forward_need
from benchmarks.machine import Rates
from benchmarks.predict import GPUS, Assumptions, PredictedSpeed, Prices, predict
from benchmarks.shapes import SHAPES, config_in_shape
from benchmarks.throughput import Workload
from service.decode.mode import DecodingMode
from service.decode.modes import Direct, Speculative, Static
from service.demo import CHECKPOINT
from service.errors import InvalidRequest
from service.model import Checkpoint, load_checkpoint
from tests.tiny import tiny_checkpoint

#: nothing but the floor
BARE = Assumptions(above_floor=1.0, forward_s=0.0, request_s=0.0, state_s=0.0, context=64)


def predicted(checkpoint: Checkpoint, device: Rates, *plans: DecodingMode, together: int = 1) -> list[PredictedSpeed]:
    workload = Workload([(10, 15, 17, 19), (13, 14)], fewest=2, new_tokens=32)
    prices = Prices(config_in_shape(checkpoint, SHAPES["sdar-1.7b"]), device, BARE)
    return list(predict(checkpoint, workload, plans, together, prices))


def test_a_forward_reads_the_weights_once_and_each_sequence_once() -> None:
    shape = config_in_shape(tiny_checkpoint(0), SHAPES["sdar-4b"])
    slow = Rates(1.0, 1e30)
    lone, states, apart = (Prices(shape, slow, BARE).backbone(*asked) for asked in ((1, 1), (4, 1), (4, 4)))
    kv = 2 * 2 * shape.num_layers * shape.num_kv_heads * shape.head_dim
    assert lone == forward_need(shape, 1, 64, 2).moved
    assert apart - states == 3 * 64 * kv
    assert states - lone == 3 * shape.block_size * (kv + 2 * shape.vocab_size)
    assert lone > 2 * shape.num_layers * 3 * shape.hidden_size * shape.intermediate_size


def test_what_a_device_takes_besides_is_added() -> None:
    shape = config_in_shape(tiny_checkpoint(0), SHAPES["sdar-8b"])
    bare, slow = (Prices(shape, GPUS["h200"], one) for one in (BARE, Assumptions(2.0, 0.5, context=64)))
    assert slow.backbone(3, 3) == pytest.approx(2 * bare.backbone(3, 3) + 0.5)
    assert slow.mrp(3, 3) == pytest.approx(2 * bare.mrp(3, 3) + 0.5)
    assert bare.mrp(1, 1) < bare.backbone(1, 1)


def test_a_checkpoint_without_mrp_has_no_price_of_it() -> None:
    prices = Prices(config_in_shape(tiny_checkpoint(0, num_mrp_heads=0), SHAPES["sdar-1.7b"]), GPUS["h100"], BARE)
    assert prices.steps(8).mrp is None
    with pytest.raises(ValueError, match="no MRP"):
        prices.mrp(1, 1)
    with pytest.raises(InvalidRequest, match="a plan needs MRP"):
        next(predict(tiny_checkpoint(0), Workload([(1,)]), [Direct(1)], 1, prices))


def test_time_is_that_of_the_forwards() -> None:
    checkpoint = tiny_checkpoint(0)
    static, direct = predicted(checkpoint, GPUS["h200"], Static(), Direct(1))
    forward = Prices(config_in_shape(checkpoint, SHAPES["sdar-1.7b"]), GPUS["h200"], BARE).backbone(1, 1)
    assert static.refines == 0
    assert static.tokens_per_forward == pytest.approx(1, abs=0.05)  # an end token may come before its block is full
    assert static.step_ms == pytest.approx(1e3 * forward, rel=0.05)  # a commit is a second row of its forward
    assert 0 < direct.refines <= 1
    assert direct.step_ms > static.step_ms


def test_auto_drafts_where_rows_cost_nothing_and_not_where_they_cost() -> None:
    """As on a card that is bound by memory, and as on one that is bound by arithmetic."""
    demo = load_checkpoint(CHECKPOINT)
    free, dear = (predicted(demo, rates, Speculative("auto"))[0] for rates in (Rates(1e9, 1e18), Rates(1e18, 1e9)))
    assert free.tokens_per_forward > 1.2
    assert free.rows > 2
    assert dear.tokens_per_forward == 1
    assert dear.rows < 1.5


def test_more_requests_share_the_weights() -> None:
    lone, four = (predicted(tiny_checkpoint(0), GPUS["a100-80gb"], Static(), together=n)[0] for n in (1, 4))
    assert four.tokens_per_second > 1.5 * lone.tokens_per_second
    assert four.concurrency == 4
