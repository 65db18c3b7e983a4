"""The lab's methods: each chooses what its source says, on readings made by hand. No torch."""

from __future__ import annotations

import math
from collections import Counter

import pytest

from dev.lab.rules import direct_in_order, prophet
from dev.lab.rules.ccd import Coherent
from dev.lab.rules.eoser_ass import Ascending, Eoser
from dev.lab.rules.ete import Explore
from dev.lab.rules.factor import Factor
from dev.lab.rules.in_order import Confident, Doubts
from dev.lab.rules.klass import Klass, divergence
from dev.lab.rules.local_leap import LocalLeap
from dev.lab.rules.margin import Margin
from dev.lab.rules.methods import METHODS
from dev.lab.rules.report import found, table
from dev.lab.rules.wino import Wino
from service.decode.block import MASKED, Block, Pick, PositionLogprobs
from service.decode.canvas import Canvas
from service.decode.policy import Evaluate, Prediction, Refine
from service.quality.schema import Plan, Row, Speed

END = 3


def read(*said: float | tuple[int, float], start: int = 0) -> Prediction:
    """A position each: its confidence, with the token 1, or token and confidence. The second token has the rest."""
    picks = []
    for position, one in enumerate(said, start):
        token, sure = one if isinstance(one, tuple) else (1, one)
        known = PositionLogprobs(((token, math.log(sure)), (9, math.log(max(1e-9, 1 - sure)))))
        picks.append(Pick(position, token, sure, known))
    return Prediction.of_picks(tuple(picks), entropies=[1 - pick.confidence for pick in picks])


def chosen(plan, *said, start=0):
    """The positions that a plan reveals of a fresh block's first reading."""
    block = Block((5,) * start + (MASKED,) * len(said))
    return [pick.position for pick in plan.begin(block)(read(*said, start=start))]


def test_near_an_anchor_less_is_enough():
    assert chosen(LocalLeap(0.9, 0.6, 1), 0.95, 0.7, 0.7, 0.5, 0.95, 0.55) == [0, 1, 4]
    assert chosen(LocalLeap(0.9, 0.6, 2), 0.7, 0.8, 0.7) == [1]  # without an anchor nothing is relaxed


def test_a_gap_above_the_threshold_of_the_progress_commits_the_rest():
    wide, narrow = 1 - 1e-6, 0.7  # gaps of 13.8 and 0.85
    assert chosen(prophet.Prophet(7.5, 5, 2.5), wide, wide, narrow) == [0, 1, 2]  # 9.5 on the mean
    assert chosen(prophet.Prophet(7.5, 5, 2.5), wide, narrow, narrow) == [0]  # 5.2
    choose = prophet.Prophet(7.5, 5, 2.5).begin(Block((MASKED,) * 4))
    assert len(choose(read(wide, narrow, narrow, narrow))) == 1
    assert len(choose(read(0.95, 0.95, 0.9))) == 1  # 2.7 at a quarter
    assert len(choose(read(0.95))) == 1
    assert [len(choose(read(0.97, 0.97))), len(choose(read(*[0.995] * 2)))] == [1, 2]  # 3.5 and 5.3 at a half


@pytest.mark.parametrize("curve", ["linear", "cosine", "exponential"])
def test_the_curves_fall_from_high_to_low(curve):
    sched = prophet.SchED(8, 2, curve)
    falling = [sched.threshold(progress / 10) for progress in range(11)]
    assert falling[0] == 8
    assert falling == sorted(falling, reverse=True)
    assert falling[-1] == pytest.approx(2 + (6 * math.exp(-2) if curve == "exponential" else 0))


def test_until_then_the_base_decodes():
    assert chosen(prophet.Prophet(99, 99, 99, "static"), 0.6, 0.9, 0.99) == [2]
    assert chosen(prophet.Prophet(99, 99, 99, "sequential"), 0.6, 0.99, 0.5, 0.99) == [0, 1]


def test_margins_are_gaps_in_probability_and_have_orders():
    said = (0.9, 0.6, 0.95, 0.55, 0.9)  # gaps .8, .2, .9, .1, .8
    assert chosen(Margin(0.5, "any"), *said) == [0, 2, 4]
    assert chosen(Margin(0.95, "any"), *said) == [2]
    assert chosen(Margin(0.5, "left"), *said) == [0]
    assert chosen(Margin(0.5, "left-but-one"), *said) == [0, 1, 2]
    assert chosen(Confident(0.8, "left"), 0.5, 0.9, 0.5) == [0, 1]  # the first is always revealed
    assert chosen(Confident(0.8, "left-but-one"), 0.5, 0.9, 0.5) == [0, 1]


def test_the_factor_allows_n_positions_where_n_plus_1_times_the_doubt_is_below_it():
    assert chosen(Factor(1.0), 0.8, 0.7, 0.74) == [0, 2]  # 2 * .2 = .4 counts, 3 * .26 = .78 counts, 4 * .3 does not
    assert chosen(Factor(1.0), 0.9, 0.8, 0.7) == [0, 1]
    assert chosen(Factor(0.1), 0.5, 0.6) == [1]
    assert chosen(Factor(1.0, "left", 1), 0.4, 0.9, 0.9, 0.3, 0.9) == [0, 1, 2]


def test_doubts_are_summed_without_the_largest():
    assert chosen(Doubts(0.1), 0.4, 0.95, 0.96, 0.9, 0.9) == [0, 1, 2]
    assert chosen(Doubts(0.0), 0.4, 0.95) == [0]


def test_what_is_confident_is_revealed_once_it_was_stable():
    choose = Klass(0.9, 0.01, 2).begin(Block((MASKED,) * 4))
    lengths = [len(choose(read(*[0.95] * 4))), len(choose(read(*[0.95] * 3))), len(choose(read(*[0.95] * 2)))]
    assert lengths == [1, 1, 2]
    choose = Klass(0.9, 0.01, 1).begin(Block((MASKED,) * 3))
    choose(read(0.95, 0.99, 0.5))
    assert [pick.position for pick in choose(read(0.95, 0.95, start=0))] == [0]  # the other has moved: KL .06


def test_the_divergence_of_listed_tokens_is_a_lower_bound():
    now, before = {1: 0.5, 2: 0.3, 3: 0.2}, {1: 0.2, 2: 0.3, 3: 0.5}
    logs = [{token: math.log(value) for token, value in of.items()} for of in (now, before)]
    true = sum(value * math.log(value / before[token]) for token, value in now.items())
    assert divergence(*logs) == pytest.approx(true)
    assert divergence(*logs) >= divergence({1: logs[0][1]}, logs[1]) > 0
    assert divergence(logs[0], logs[0]) == pytest.approx(0)


def test_what_two_forwards_agree_on_is_revealed_together():
    choose = Coherent(3).begin(Block((MASKED,) * 6))
    assert [pick.position for pick in choose(read((1, 0.9), (1, 0.8), (1, 0.7), (1, 0.6)))] == [0]  # keeps one: 1
    assert [pick.position for pick in choose(read((1, 0.8), (1, 0.7), (1, 0.6), start=1))] == [1]  # keeps two: 2, 3
    assert [pick.position for pick in choose(read((1, 0.8), (1, 0.7), start=2))] == [2, 3]
    choose = Coherent(3).begin(Block((MASKED,) * 6))
    choose(read((1, 0.9), (1, 0.8), (1, 0.7)))
    choose(read((1, 0.8), (1, 0.7), (1, 0.6), start=1))
    assert [pick.position for pick in choose(read((1, 0.8), (2, 0.7), start=2))] == [2]  # another token


def test_without_a_confident_position_the_most_uncertain_is_explored():
    assert chosen(Explore(0.9), 0.95, 0.4, 0.92) == [0, 2]
    assert chosen(Explore(0.9), 0.8, 0.4, 0.5) == [1]
    assert chosen(Explore(0.9, 1), 0.95, 0.4, 0.92) == [0, 2, 1]


def test_steps_ascend_and_end_tokens_are_held_back():
    choose = Ascending().begin(Block((MASKED,) * 16))
    assert [len(choose(read(*[0.5] * masked))) for masked in (16, 15, 13, 9)] == [1, 2, 4, 9]
    assert chosen(Eoser(0.4), (END, 0.9), 0.5) == [1]
    assert chosen(Eoser(1.0), (END, 0.9), 0.5) == [0]
    choose = Eoser(0.4).begin(Block((MASKED,) * 2))
    choose(read(0.5, (END, 0.9)))
    assert [pick.token for pick in choose(read((END, 0.9), start=1))] == [END]


def test_wino_takes_back_what_the_others_make_unlikely():
    """The token 1 at position 1 is revealed with token 1 at position 0, without which it was likely."""

    def says(state: Block) -> Prediction:
        later = 0.3 if state.tokens[2] == MASKED else 0.9
        sure = {0: 0.95, 1: 0.3 if state.tokens[0] == 1 else 0.9, 2: 0.8, 3: later, 4: later}
        token = {1: 2 if state.tokens[0] == 1 else 1}
        return Prediction.of_picks(tuple(Pick(place, token.get(place, 1), sure[place]) for place in state.masked))

    canvas = Canvas(Block((MASKED,) * 5))
    asked = decoded(Wino(0.7, 0.8), canvas, says)
    assert asked == [1, 4, 5]  # rows
    assert canvas.block.tokens == (1, 2, 1, 1, 1)


def decoded(plan, canvas, says):
    """Decodes a block; the states of each forward, counted."""
    policy, asked, readings = plan.decode(canvas), [], None
    try:
        while len(asked) < 500:
            query = next(policy) if readings is None else policy.send(readings)
            states = query.states if isinstance(query, Evaluate) else (query.state,)
            readings = tuple(says(state) for state in states)
            asked.append(-1 if isinstance(query, Refine) else len(states))
    except StopIteration:
        return asked
    raise AssertionError("never ends")


def test_direct_in_order_asks_mrp_between_two_forwards():
    canvas = Canvas(Block((MASKED,) * 6))
    asked = decoded(
        direct_in_order.DirectInOrder(2, 0.1),
        canvas,
        lambda state: read(*[0.5] * len(state.masked), start=state.num_leading),
    )
    assert asked == [1, -1, -1, 1, -1, -1]
    assert [step.kind for step in canvas.steps] == ["denoise", "mrp", "mrp"] * 2


ALL = [plan for method in METHODS[1:] for plan in method.plans + method.tried]


@pytest.mark.parametrize("plan", ALL, ids=lambda plan: Plan.of(plan).name)
def test_every_plan_is_allowed_and_fills_a_block(plan):
    def says(state: Block) -> Prediction:
        confidences = [(7 * place + 5 * state.num_revealed) % 10 / 10 + 0.05 for place in state.masked]
        tokens = [1 + (place + state.num_revealed) % 3 for place in state.masked]
        found = read(*zip(tokens, confidences, strict=True))
        places = state.masked
        return found._replace(positions=[places[place] for place in found.positions])

    plan.check(16)
    canvas = Canvas(Block((5,) * 3 + (MASKED,) * 13))
    decoded(plan, canvas, says)
    assert canvas.block.complete
    assert canvas.block.tokens[:3] == (5,) * 3
    assert all(step.revealed or step.remasked for step in canvas.steps)


def test_no_plan_is_measured_twice():
    names = Counter(Plan.of(plan).name for method in METHODS for plan in method.plans + method.tried)
    assert names.most_common(1)[0][1] == 1


def test_the_table_marks_what_no_kept_plan_beats():
    kept, other = METHODS[0], METHODS[1]

    def row(plan, accuracy, tokens_per_forward, speed) -> Row:
        speeds = [
            Speed(
                concurrency=1, tokens_per_second=speed, tokens_per_second_wall=speed, speedup=1.0, speedup_low=1.0,
                speedup_high=1.0,
            )
        ]  # fmt: skip
        return Row(
            plan=Plan.of(plan), lossless=False, prompts=10, right=1, gained=0, lost=0, identical=1, accuracy=accuracy,
            accuracy_low=0.0, accuracy_high=1.0, difference=0.0, difference_low=0.0, difference_high=0.0,
            tokens_per_forward=tokens_per_forward, speed=speeds,
        )  # fmt: skip

    kept, other = kept._replace(plans=kept.plans[:2]), other._replace(plans=(other.plans + other.tried)[:3])
    rows = [row(kept.plans[0], 0.9, 1.0, 100.0), row(kept.plans[1], 0.5, 3.0, 300.0)]
    rows += [
        row(other.plans[0], 0.9, 2.0, 90.0),
        row(other.plans[1], 0.4, 2.9, 299.0),
        row(other.plans[2], 0.6, 3.0, 200.0),
    ]
    marks = [line.split("|")[-2].strip() for line in list(table(found([kept, other], rows)))[2:]]
    assert marks[2:] == ["tokens/forward", "", "tokens/forward, time at 1"]
