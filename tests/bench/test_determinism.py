"""Counting answers that a batch changes, and the price of none: what is counted, on random weights."""

import pytest
import torch

from service.bench.determinism import TEMPERATURES, count_differences, prices, random_prompts
from service.bench.rounds import Rounds
from service.bench.speed import Workload
from service.decode.modes import Static
from service.engine import Engine, EngineConfig
from service.model import LoadOptions, load_checkpoint
from tests.runners import Around, engine_over
from tests.tiny import GOLDEN, tiny_checkpoint


class Forgetful(Around):
    """A runner whose tokens depend on whether another block index shares the forward."""

    def evaluate(self, rows):
        readings = super().evaluate(rows)
        if len({row.index for row in rows}) == 1:
            return readings
        return [one._replace(tokens=[(token + 1) % 50 for token in one.tokens]) for one in readings]


@pytest.mark.parametrize("fives", [1, pytest.param(4, marks=pytest.mark.slow)])
def test_with_the_switch_nothing_differs(fives):
    checkpoint = load_checkpoint(GOLDEN / "sdar-mrp-random-b", LoadOptions(dtype=torch.bfloat16))
    engine = Engine(checkpoint, EngineConfig(deterministic=True))
    found = count_differences(engine, random_prompts(engine, 5 * fives), new_tokens=12)
    assert (found.requests, found.drafted) == (5 * fives * len(TEMPERATURES), 2 * 3 * fives)
    assert (found.differing, found.broken) == (0, 0)


def test_what_a_batch_changes_is_counted():
    engine, _ = engine_over(Forgetful, tiny_checkpoint(1))
    found = count_differences(engine, random_prompts(engine, 6), new_tokens=12)
    assert found.differing > 5


def test_a_backbone_alone_has_no_drafts():
    engine = Engine(tiny_checkpoint(1, num_mrp_heads=None, num_nextn_predict_layers=None))
    found = count_differences(engine, random_prompts(engine, 4), new_tokens=6)
    assert (found.requests, found.drafted, found.broken) == (12, 0, 0)


@pytest.mark.parametrize("rounds", [1, 2])
def test_prices_stand_for_every_workload_and_concurrency(rounds):
    checkpoint = tiny_checkpoint(1)
    engines = Engine(checkpoint), Engine(checkpoint, EngineConfig(deterministic=True))
    rows = list(prices(engines, [Workload(Static(), new_tokens=8)], Rounds([1, 3], rounds)))
    assert [(row.mode, row.concurrency) for row in rows] == [("static", 1), ("static", 3)]
    assert all(row.free > 0 and row.fixed > 0 and row.ratio > 0 for row in rows)
