"""`mrp_steps: "auto"` on the demo, by a clock that only forwards move: rows are free, cost something, or too much."""

from collections.abc import Sequence

import pytest

from service.decode.mode import DecodingMode
from service.decode.modes import Speculative, Static
from service.decode.policy import Prediction
from service.demo import CHECKPOINT, heldout_problems
from service.engine import EngineDeps, GenerationRequest, Stats
from service.engine.drafting.costs import Curve, StepCosts
from service.engine.forward.rows import Row
from service.engine.forward.runner import ModelRunner
from service.model import Checkpoint, load_checkpoint
from service.text import TextCodec
from tests.clock import Clock
from tests.engine.helpers import CHEAP_ROWS, DEAR_ROWS
from tests.runners import RunnerWrapper, engine_over

#: A forward takes as long over one row as over thirteen of 16 tokens, and MRP a twentieth of it, in seconds: a GPU that
#: is not full. If MRP takes a tenth, trees without it are as fast.
GPU = StepCosts(Curve(((1, 0.01), (13, 0.01), (256, 0.04))), Curve(((1, 0.0005), (13, 0.0005), (256, 0.002))))
#: Four rows are dear after two and before eight: the demo on one thread, and the shape of SDAR-1.7B on two.
DENTED = StepCosts(Curve(((1, 2.06), (2, 2.61), (4, 5.11), (8, 6.58), (16, 11.7))))
DENTED_AS_SDAR = StepCosts(Curve(((1, 202.0), (2, 287.0), (4, 642.0), (8, 873.0), (16, 1945.0))))


class Priced(RunnerWrapper):
    """A runner whose forwards take the time that the table says."""

    def __init__(self, runner: ModelRunner, clock: Clock, costs: StepCosts) -> None:
        super().__init__(runner)
        self._clock, self._costs = clock, costs

    def evaluate(self, rows: Sequence[Row]) -> list[Prediction]:
        self._clock.now += self._costs.backbone.at(len(rows))
        return super().evaluate(rows)

    def refine(self, rows: Sequence[Row]) -> list[Prediction]:
        assert self._costs.mrp is not None
        self._clock.now += self._costs.mrp.at(len(rows))
        return super().refine(rows)


@pytest.fixture(autouse=True)
def any_plan() -> None:
    """The clock decides which plan runs."""


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    return load_checkpoint(CHECKPOINT)


def requests_for(checkpoint: Checkpoint, mode: DecodingMode, count: int) -> list[GenerationRequest]:
    """The first held-out problems as requests."""
    codec, stop = TextCodec.load(CHECKPOINT), frozenset(checkpoint.config.eos_token_ids)
    prompts = [
        codec.encode_chat([{"role": "user", "content": problem.prompt}]) for problem in heldout_problems(count, seed=4)
    ]
    return [
        GenerationRequest(str(number), tuple(prompt), mode, max_new_tokens=64, stop_token_ids=stop)
        for number, prompt in enumerate(prompts)
    ]


class Decoded:
    """Problems that were decoded, `together` at once. `seconds`: of the clock, those of the last half of them."""

    def __init__(self, checkpoint: Checkpoint, costs: StepCosts, mode: DecodingMode, count: int, together: int) -> None:
        clock = Clock()
        engine, _ = engine_over(
            lambda runner: Priced(runner, clock, costs),
            checkpoint,
            EngineDeps(costs=costs, clock=clock),
            max_running=together,
            prefix_cache=False,
        )
        requests = requests_for(checkpoint, mode, count)
        first = engine.generate(requests[: count // 2])
        begin = clock.now
        last = engine.generate(requests[count // 2 :])
        self.seconds = clock.now - begin
        self.stats: list[Stats] = [completion.stats for completion in last]
        self.answers = [completion.token_ids for completion in (*first, *last)]

    @property
    def tokens_per_forward(self) -> float:
        forwards = sum(stat.forwards.denoise + stat.forwards.verify for stat in self.stats)
        return sum(stat.decoded_tokens for stat in self.stats) / forwards


def test_on_a_gpu_that_is_not_full_big_trees_and_mrp_pay(checkpoint: Checkpoint) -> None:
    fixed, decoded = (Decoded(checkpoint, GPU, mode, 20, 1) for mode in (Speculative(2, 7), Speculative()))
    assert decoded.seconds < fixed.seconds / 0.92  # trials included
    assert decoded.answers == fixed.answers
    assert sum(stat.mrp_steps == 2 for stat in decoded.stats) >= 4
    assert sum(stat.drafts_proposed for stat in decoded.stats) > 6 * sum(stat.forwards.verify for stat in decoded.stats)
    assert decoded.tokens_per_forward > 1.9


def test_where_a_row_costs_a_quarter_of_a_forward_small_trees_without_mrp_do(checkpoint: Checkpoint) -> None:
    decoded = Decoded(checkpoint, CHEAP_ROWS, Speculative(), 10, 1)
    assert sum(stat.mrp_steps == 0 for stat in decoded.stats) >= 4
    assert sum(stat.drafts_proposed for stat in decoded.stats) < 5 * sum(stat.forwards.verify for stat in decoded.stats)
    assert 1.3 < decoded.tokens_per_forward < 2.3


def test_where_no_draft_can_pay_it_is_static(checkpoint: Checkpoint) -> None:
    drafted, static = (Decoded(checkpoint, DEAR_ROWS, mode, 2, 1) for mode in (Speculative(), Static()))
    assert [stat.forwards for stat in drafted.stats] == [stat.forwards for stat in static.stats]
    assert not any(stat.drafts_proposed for stat in drafted.stats)


@pytest.mark.parametrize("costs", [pytest.param(DENTED, marks=pytest.mark.slow), DENTED_AS_SDAR])
@pytest.mark.parametrize("together", [1, pytest.param(4, marks=pytest.mark.slow)])
def test_where_some_numbers_of_rows_are_dear_it_is_as_fast_as_the_best_fixed_plan(
    checkpoint: Checkpoint, costs: StepCosts, together: int
) -> None:
    """One draft is the best fixed plan there: without drafts it takes a tenth longer."""
    static, drafted, auto = (
        Decoded(checkpoint, costs, mode, 8 + 8 * together, together)
        for mode in (Static(), Speculative(0, 1), Speculative())
    )
    assert drafted.seconds < 0.95 * static.seconds
    assert auto.seconds < drafted.seconds / 0.92  # trials included
    assert auto.answers == static.answers == drafted.answers
