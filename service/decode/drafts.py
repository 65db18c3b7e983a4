"""Drafts for `speculative`: states that the decoding of a block is likely to pass through, to be verified.

`chain` is the published method: one draft after the other, each from MRP (MRP paper, speculative decoding). `tree`
chooses the states with the highest estimated likelihood that are worth their cost, one after another, the likeliest
first. So MRP reads a state before its successors are looked at, and nothing is ever looked at again. A rule of one
token a step may go on at any position (`draft_search.py`). Any other rule goes on in one way, and the tree is a line.
Without MRP a tree drafts from the backbone's last prediction only, as FreeDave's self-drafting does.

Drafts do not change the output: they are only compared with the backbone's own picks. `engine/drafting/costs.py`
measures how long a tree takes.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from service.decode.block import MASKED, Block, Pick, new_tuple
from service.decode.canvas import Canvas, DraftBudget
from service.decode.draft_search import FRESH, STALE, SURE, BestFirstSearch, Node, most_likely
from service.decode.policy import Prediction, Query, Refine
from service.decode.rules import LeftToRight, Rule, TopConfidence

#: Likelihood that several picks at once are the rule's next picks, measured for `threshold` .5 and .9 and
#: `tokens_per_step` 2.
_SEVERAL = 0.45
#: the rule whose picks have odds: one token a step
_ONE = TopConfidence(1)
#: the rule whose next position is certain
_NEXT = LeftToRight(1)


class Draft(NamedTuple):
    """A state to be verified: the picks that lead to it from the state before.

    `number`: its index among the drafts, from 1 on. `gain`: the expected number of tokens gained by verifying it; 0 in
    a chain, where it is not estimated.
    """

    number: int
    picks: tuple[Pick, ...]
    gain: float = 0.0


#: in the order of their numbers
Drafts = Mapping[Block, Draft]
Drafting = Generator[Query, tuple[Prediction, ...], Drafts]


def chain(canvas: Canvas, prediction: Prediction, steps: int, rule: Rule, *, first: bool) -> Drafting:
    """A chain of up to `steps` states, each with one more draft than the one before. Ends at a complete state.

    `prediction`: the prediction of the state before the canvas's. `first`: the first round of a block, whose first
    draft is MRP's. Later rounds begin with the picks of `prediction`.
    """
    block, drafts = canvas.block, dict[Block, Draft]()
    picks = () if first else canvas.choose(rule, prediction.of(block), block)
    while len(drafts) < steps and not block.complete:
        if not picks:
            (prediction,) = yield Refine(prediction, block)
            if not (picks := canvas.choose(rule, prediction, block)):
                break  # the answer has ended
        block = canvas.after(block, picks)
        drafts[block], picks = Draft(len(drafts) + 1, picks), ()
    return drafts


def can_pay(rule: Rule, budget: DraftBudget) -> bool:
    """Whether any state can be worth its cost: a state of one token a step gains one token at most."""
    return budget.states > 0 and (budget.row < 1 or type(rule) is not TopConfidence or rule.count > 1)


def tree(canvas: Canvas, prediction: Prediction, rule: Rule, budget: DraftBudget) -> Drafting:
    """The likeliest states after the canvas's that the budget allows and that are worth their cost.

    `prediction`: the prediction of the state before. MRP reads the canvas's state and those that are chosen first. The
    successors of a state that MRP does not read come from the prediction of the state before. No returned state ends
    the answer.

    Example: the picks of the block have the weights a 0.6 and b 0.4. The states {a} and {b} have the likelihoods 0.6
    and 0.4. After {a} only b is left, and after {b} only a. So {a, b} is reached in both ways: likelihood 1.
    """
    if type(rule) is not TopConfidence or rule.count > 1:
        return _line(canvas, prediction, rule, budget)
    return _branches(canvas, prediction, budget)


def _branches(canvas: Canvas, prediction: Prediction, budget: DraftBudget) -> Drafting:
    """The tree for the rule of one token a step. With a grammar there is another rule, so picks force nothing."""
    block, drafts = canvas.block, dict[Block, Draft]()
    if not can_pay(_ONE, budget) or block.tokens.count(MASKED) < 2:
        return drafts
    if budget.row > 0.5 and most_likely(prediction.of(block).confidences, STALE) < budget.row:
        return drafts  # mostly so under full load, so nothing is made before
    node, search = Node(block, 1.0, 0, prediction), BestFirstSearch(budget.states)
    if budget.row or not budget.mrp_steps:
        search.rank(node, STALE)
        if budget.row and not _pays(node, canvas, budget.row):
            return drafts
    for number in range(budget.states):
        if number < budget.mrp_steps:
            (node.prediction,) = yield new_tuple(Refine, (node.prediction, node.state, ()))
            search.rank(node, FRESH)
        search.expand(node)
        following = search.choose(canvas.ends)
        if following is None or following.likelihood < budget.row:
            break
        node = following
        drafts[node.state] = new_tuple(Draft, (number + 1, node.last, node.likelihood))
    return drafts


def _pays(node: Node, canvas: Canvas, row: float) -> bool:
    """Whether a state right after the canvas's is worth its cost."""
    likely = (pick for likelihood, pick in node.likely() if likelihood >= row)
    return any(not canvas.ends(canvas.block.reveal((pick,))) for pick in likely)


def _line(canvas: Canvas, prediction: Prediction, rule: Rule, budget: DraftBudget) -> Drafting:
    """The tree for any other rule: the states through which it goes on by the latest predictions."""
    line, drafts = _Line(canvas, rule, budget.row), dict[Block, Draft]()
    block, likelihood = canvas.block, 1.0
    if not budget.states or line.after(block, likelihood, prediction) is None:
        return drafts
    while len(drafts) < budget.states:
        if len(drafts) < budget.mrp_steps:
            (prediction,) = yield Refine(prediction, block)
        following = line.after(block, likelihood, prediction)
        if following is None:
            break
        block, likelihood, picks, gain = following
        drafts[block] = Draft(len(drafts) + 1, picks, gain)
    return drafts


@dataclass(frozen=True, slots=True)
class _Line:
    """The states of a block through which a rule goes. `row`: the cost of a state, in tokens."""

    canvas: Canvas
    rule: Rule
    row: float

    def after(
        self, state: Block, likelihood: float, prediction: Prediction
    ) -> tuple[Block, float, tuple[Pick, ...], float] | None:
        """(next state, its likelihood, the picks that lead to it, its expected gain). `likelihood`: that of `state`.

        The expected gain of a draft is one step of plain decoding, of about as many tokens as the step that leads to
        it. None if the rule does not go on, if the next state is not worth its cost, or if the answer ends in it.
        """
        picks = self.canvas.choose(self.rule, prediction.of(state), state)
        if not picks:
            return None
        likelihood *= max(0.0, min(picks[0].confidence, SURE)) if self.rule == _NEXT else _SEVERAL  # never NaN
        gain, following = likelihood * len(picks), self.canvas.after(state, picks)
        if gain < self.row or self.canvas.ends(following):
            return None
        return following, likelihood, picks, gain
