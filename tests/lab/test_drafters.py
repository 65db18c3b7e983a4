"""The lab's drafters, verifiers and judges, driven by a scripted model."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dev.lab.rules import learn2pd
from dev.lab.rules.first_draft import SOURCES, Chained
from dev.lab.rules.groups import GROUPS
from dev.lab.rules.judge_quality import auc
from dev.lab.rules.judged_remask import JudgedRemask
from dev.lab.rules.learn2pd import Filtered
from dev.lab.rules.mars import mars
from dev.lab.rules.s2d2 import S2d2
from dev.lab.rules.while_sure import DirectWhileSure, RemaskInOrder
from service.decode.block import MASKED, Block, Pick
from service.decode.modes import Dynamic, Remask, Sequential, Speculative, Static
from service.decode.policy import Prediction
from tests.decode.oracle import fixed, masked_block, mostly, random_oracle, run

M = MASKED
SEEDS = range(6)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("first", SOURCES)
def test_a_chain_gives_statics_tokens_whatever_its_first_draft(first: str, seed: int) -> None:
    truth = random_oracle(seed)
    drafts = mostly(truth, random_oracle(seed + 50), seed)
    plain = run(masked_block(8), Static(), truth)
    done = run(masked_block(8), Chained(3, first, 0.6), truth, drafts)
    assert done.tokens == plain.tokens
    assert len(done.evaluations) <= len(plain.evaluations)


def test_the_published_order_is_the_modes_own() -> None:
    for seed in SEEDS:
        truth, mrp = random_oracle(seed), mostly(random_oracle(seed), random_oracle(99), seed)
        ours = run(masked_block(8), Chained(3, "stale"), truth, mrp)
        mode = run(masked_block(8), Speculative(3), truth, mrp)
        assert [query.states for query in ours.evaluations] == [query.states for query in mode.evaluations]


@pytest.mark.parametrize("seed", SEEDS)
def test_s2d2_gives_sequentials_tokens(seed: int) -> None:
    truth = random_oracle(seed, tokens=2)
    plain = run(masked_block(8), Sequential(), truth)
    for params in (S2d2(3), S2d2(8), S2d2(8, cost=2.0)):
        done = run(masked_block(8), params, truth)
        assert done.tokens == plain.tokens
        assert len(done.evaluations) <= len(plain.evaluations)


def test_s2d2_verifies_the_first_unbroken_span_only() -> None:
    said = fixed({p: (p, 0.5) for p in range(6)})
    done = run(Block((M, M, 9, M, M, M)), S2d2(16), said)
    assert [state.tokens for state in done.evaluations[1].states] == [(0, M, 9, M, M, M), (0, 1, 9, M, M, M)]


def test_s2d2_skips_a_verification_that_promises_too_little() -> None:
    doubtful = fixed({p: (p, 0.5, 9.0) for p in range(4)})
    done = run(masked_block(4), S2d2(4, cost=1.0, beta=4.0), doubtful)
    assert all(len(query.states) == 1 for query in done.evaluations)


def test_mars_accepts_several_tokens_that_the_bound_would_not_let_through_together() -> None:
    """The verifier finds all tokens best where they are, yet reveals one at a time: its entropies are high."""
    truth = fixed({p: (p, 0.9, 0.6) for p in range(8)})
    drafts = fixed({p: (p, 0.9, 0.0) for p in range(8)})
    strict = run(masked_block(8), Speculative(2, verify="sequential", entropy_bound=0.1), truth, drafts)
    lax = run(masked_block(8), mars(0.9, 2, bound=0.1), truth, drafts)
    assert [len(revealed) for revealed in strict.revealed] == [1, 1, 2, 2, 2]
    assert [len(revealed) for revealed in lax.revealed] == [1, 7]


def test_every_plan_of_a_comparison_is_allowed() -> None:
    for plans in GROUPS.values():
        for plan in plans:
            plan.check(16)


@pytest.mark.parametrize("seed", SEEDS)
def test_judges_that_are_the_modes_own(seed: int) -> None:
    truth, mrp = random_oracle(seed), random_oracle(seed + 50)
    own = run(masked_block(8), JudgedRemask(0.4, order="left"), truth, mrp)
    assert own.revealed == run(masked_block(8), Remask(0.4), truth, mrp).revealed
    nobody = run(masked_block(8), JudgedRemask(0.4, judge="nobody", order="left"), truth)
    assert nobody.revealed == run(masked_block(8), Dynamic(0.4), truth).revealed


def test_a_judge_in_turn_sees_only_what_it_found_best_before() -> None:
    said = {0: (10, 0.9), 1: (11, 0.8), 2: (12, 0.7)}
    judge = fixed({**said, 1: (99, 0.9)})
    done = run(masked_block(3), JudgedRemask(0.5, judge="mrp_in_turn", decide="best"), fixed(said), judge)
    assert [query.state.tokens for query in done.refinements[:2]] == [(10, M, M), (10, M, M)]
    assert done.canvas.steps[1].remasked == (1,)


def test_the_backbone_judges_each_token_with_the_others_in_place() -> None:
    said = fixed({0: (10, 0.9), 1: (11, 0.8), 2: (12, 0.7)})
    done = run(masked_block(3), JudgedRemask(0.5, judge="backbone_each", order="left"), said)
    assert [state.tokens for state in done.evaluations[1].states[1:]] == [(M, 11, 12), (10, M, 12), (10, 11, M)]


def test_in_order_all_behind_the_first_doubtful_token_goes() -> None:
    sure = fixed({p: (p, 0.9, 0.0) for p in range(4)})
    doubts = fixed({p: (p, 0.1 if p == 1 else 0.9, 0.0) for p in range(4)})
    done = run(masked_block(4), RemaskInOrder(1.0, 0.5), sure, doubts)
    assert done.canvas.steps[1].remasked == (1, 2, 3)


def test_direct_stops_where_mrp_is_not_sure() -> None:
    mrp = fixed({0: (10, 0.95), 1: (11, 0.5), 2: (12, 0.4), 3: (13, 0.99)})
    done = run(masked_block(4), DirectWhileSure(4, 0.9), fixed({p: (p, 0.5) for p in range(4)}), mrp)
    assert done.revealed[:2] == [[(0, 0)], [(3, 13)]]
    assert done.canvas.steps[2].kind == "denoise"


def test_the_learned_filter_reveals_what_it_finds_final_and_the_surest(monkeypatch: pytest.MonkeyPatch) -> None:
    first = np.eye(16, dtype=np.float32)  # each position's logit: 10 times its confidence, less 7
    layers = [first, np.zeros(16, np.float32), 10 * first, np.full(16, -7.0, np.float32)]
    monkeypatch.setattr(learn2pd, "filters", lambda: {"paper": layers})
    picks = tuple(Pick(p, p, sure) for p, sure in enumerate((0.95, 0.5, 0.99, 0.6)))
    assert [pick.position for pick in Filtered(0.9, "paper")(Prediction.of_picks(picks))] == [0, 2]
    assert [pick.position for pick in Filtered(0.999, "paper")(Prediction.of_picks(picks))] == [2]


def test_auc_counts_ties_as_a_half() -> None:
    assert auc([0.9, 0.5], [0.5, 0.1]) == pytest.approx(3.5 / 4)
    assert auc([1.0], [1.0]) == 0.5
    assert math.isnan(auc([], [0.1]))
