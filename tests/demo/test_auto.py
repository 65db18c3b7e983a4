"""`mrp_steps: "auto"` on the demo if rows are free, cost something, or cost more than they gain."""

import pytest

from service.decode.modes import Speculative, Static
from service.demo import CHECKPOINT, heldout_problems
from service.engine import Engine, EngineConfig, GenerationRequest, Parts
from service.engine.drafting.costs import Curve, StepCosts
from service.model import load_checkpoint
from service.text import TextCodec
from tests.engine.helpers import DEAR, FAIR

#: A forward takes as long over one row as over thirteen of 16 tokens, and MRP a tenth of it: a GPU that is not full.
GPU = StepCosts(Curve(((1, 10.0), (13, 10.0), (256, 40.0))), Curve(((1, 1.0), (13, 1.0), (256, 4.0))))


@pytest.fixture(scope="module")
def checkpoint():
    return load_checkpoint(CHECKPOINT)


def decoded(checkpoint, costs, params, count=3):
    """Statistics of some problems, one alone after the other."""
    engine = Engine(checkpoint, EngineConfig(max_running=1), parts=Parts(costs=costs))
    codec = TextCodec.load(CHECKPOINT)
    prompts = [codec.encode_chat([{"role": "user", "content": one.prompt}]) for one in heldout_problems(count, seed=4)]
    stop = frozenset(checkpoint.config.eos_token_ids)
    return [
        completion.stats
        for completion in engine.generate(
            GenerationRequest(str(number), tuple(prompt), params, max_new_tokens=96, stop_token_ids=stop)
            for number, prompt in enumerate(prompts)
        )
    ]


def tokens_per_forward(stats):
    return sum(one.decoded_tokens for one in stats) / sum(one.forwards.denoise + one.forwards.verify for one in stats)


def test_on_a_gpu_that_is_not_full_big_trees_and_mrp_pay(checkpoint):
    stats = decoded(checkpoint, GPU, Speculative())
    assert all(one.mrp_steps > 0 for one in stats)
    assert sum(one.drafts_proposed for one in stats) > 8 * sum(one.forwards.verify for one in stats)
    assert tokens_per_forward(stats) > 2.5


def test_where_a_row_costs_a_quarter_of_a_forward_small_trees_without_mrp_do(checkpoint):
    stats = decoded(checkpoint, FAIR, Speculative())
    assert {one.mrp_steps for one in stats} == {0}
    assert sum(one.drafts_proposed for one in stats) < 5 * sum(one.forwards.verify for one in stats)
    assert 1.3 < tokens_per_forward(stats) < 2.3


def test_where_no_draft_can_pay_it_is_static(checkpoint):
    drafted, static = decoded(checkpoint, DEAR, Speculative()), decoded(checkpoint, DEAR, Static())
    assert [one.forwards for one in drafted] == [one.forwards for one in static]
    assert not any(one.drafts_proposed for one in drafted)
