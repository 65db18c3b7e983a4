"""`mrp_steps: "auto"` on the demo if rows are free, cost something, or cost more than they gain."""

import pytest

from service.decode.modes import Speculative, Static
from service.demo import CHECKPOINT, heldout_problems
from service.engine import Engine, EngineConfig, EngineDeps, GenerationRequest
from service.engine.drafting.costs import Curve, StepCosts
from service.model import load_checkpoint
from service.text import TextCodec
from tests.engine.helpers import CHEAP_ROWS, DEAR_ROWS
from tests.runners import RunnerWrapper, engine_over

#: A forward takes as long over one row as over thirteen of 16 tokens, and MRP a tenth of it: a GPU that is not full.
GPU = StepCosts(Curve(((1, 10.0), (13, 10.0), (256, 40.0))), Curve(((1, 1.0), (13, 1.0), (256, 4.0))))
#: Four rows are dear after two and before eight: the demo on one thread, and the shape of SDAR-1.7B on two.
DENTED = StepCosts(Curve(((1, 2.06), (2, 2.61), (4, 5.11), (8, 6.58), (16, 11.7))))
DENTED_AS_SDAR = StepCosts(Curve(((1, 202.0), (2, 287.0), (4, 642.0), (8, 873.0), (16, 1945.0))))


class Counting(RunnerWrapper):
    """A runner, and the rows of each of its forwards."""

    def __init__(self, runner):
        super().__init__(runner)
        self.rows = []

    def evaluate(self, rows):
        self.rows.append(len(rows))
        return super().evaluate(rows)


@pytest.fixture(scope="module")
def checkpoint():
    return load_checkpoint(CHECKPOINT)


def requests_for(checkpoint, mode, count):
    """The first held-out problems as requests."""
    codec, stop = TextCodec.load(CHECKPOINT), frozenset(checkpoint.config.eos_token_ids)
    prompts = [
        codec.encode_chat([{"role": "user", "content": problem.prompt}]) for problem in heldout_problems(count, seed=4)
    ]
    return [
        GenerationRequest(str(number), tuple(prompt), mode, max_new_tokens=64, stop_token_ids=stop)
        for number, prompt in enumerate(prompts)
    ]


def decoded(checkpoint, costs, mode, count=3):
    """Statistics of some problems, one alone after the other."""
    engine = Engine(checkpoint, EngineConfig(max_running=1), deps=EngineDeps(costs=costs))
    return [completion.stats for completion in engine.generate(requests_for(checkpoint, mode, count))]


def rows_of(checkpoint, costs, mode, together):
    """The rows of the forwards for some problems, so many at once, and the answers."""
    engine, runner = engine_over(
        Counting, checkpoint, EngineDeps(costs=costs), max_running=together, prefix_cache=False
    )
    answers = [completion.token_ids for completion in engine.generate(requests_for(checkpoint, mode, 1 + together))]
    return runner.rows, answers


def tokens_per_forward(stats):
    return sum(stat.decoded_tokens for stat in stats) / sum(
        stat.forwards.denoise + stat.forwards.verify for stat in stats
    )


def test_on_a_gpu_that_is_not_full_big_trees_and_mrp_pay(checkpoint):
    stats = decoded(checkpoint, GPU, Speculative())
    assert all(stat.mrp_steps > 0 for stat in stats)
    assert sum(stat.drafts_proposed for stat in stats) > 6 * sum(stat.forwards.verify for stat in stats)
    assert tokens_per_forward(stats) > 1.9


def test_where_a_row_costs_a_quarter_of_a_forward_small_trees_without_mrp_do(checkpoint):
    stats = decoded(checkpoint, CHEAP_ROWS, Speculative())
    assert {stat.mrp_steps for stat in stats} == {0}
    assert sum(stat.drafts_proposed for stat in stats) < 5 * sum(stat.forwards.verify for stat in stats)
    assert 1.3 < tokens_per_forward(stats) < 2.3


def test_where_no_draft_can_pay_it_is_static(checkpoint):
    drafted, static = (decoded(checkpoint, DEAR_ROWS, mode, 1) for mode in (Speculative(), Static()))
    assert [stat.forwards for stat in drafted] == [stat.forwards for stat in static]
    assert not any(stat.drafts_proposed for stat in drafted)


@pytest.mark.parametrize("together", [1, 4])
def test_where_some_numbers_of_rows_are_dear_it_is_as_fast_as_the_best_fixed_plan(checkpoint, together):
    """By the table, not by a clock. One draft is the best fixed plan there: without drafts it takes a tenth longer."""
    fixed = [rows_of(checkpoint, CHEAP_ROWS, mode, together) for mode in (Static(), Speculative(0, 1))]
    for costs in (DENTED, DENTED_AS_SDAR):
        rows, answers = rows_of(checkpoint, costs, Speculative(), together)
        plain, drafted = (sum(map(costs.backbone.at, counts)) for counts, _ in fixed)
        assert drafted < 0.95 * plain
        assert sum(map(costs.backbone.at, rows)) < drafted / 0.98
        assert all(answers == same for _, same in fixed)
