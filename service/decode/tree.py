"""A tree of drafts: the likeliest states that the decoding of a block may pass through.

`speculative` calls it, and `engine/drafting/costs.py` measures it. States are chosen one after another, the likeliest
first, so a state is read by MRP before its successors are looked at and nothing is ever looked at again. A rule of one
token a step may go on at any position (`frontier.py`). Any other rule goes on in one way, and the tree is a line.
"""

from __future__ import annotations

from dataclasses import dataclass

from service.decode.block import MASKED, Block, Pick, make
from service.decode.canvas import Canvas
from service.decode.draft_budget import DraftBudget
from service.decode.drafting import Draft, Drafting
from service.decode.frontier import FRESH, STALE, SURE, Frontier, Node, most_likely
from service.decode.policy import Prediction, Refine
from service.decode.rules import LeftToRight, TopConfidence, Rule

#: Likelihood that several picks at once are the rule's next picks, measured for `threshold` .5 and .9 and
#: `tokens_per_step` 2.
_SEVERAL = 0.45
#: the rule whose picks have odds: one token a step
_ONE = TopConfidence(1)
#: the rule whose next place is certain
_NEXT = LeftToRight(1)


def can_pay(rule: Rule, budget: DraftBudget) -> bool:
    """Whether any state can be worth its cost: a state of one token a step promises one token at most."""
    return budget.states > 0 and (budget.row < 1 or type(rule) is not TopConfidence or rule.count > 1)


def tree(canvas: Canvas, reading: Prediction, rule: Rule, budget: DraftBudget) -> Drafting:
    """The likeliest states after the canvas's that the budget allows and that are worth their cost.

    `reading`: of the state before. MRP reads the canvas's state and those that are chosen first. The successors of a
    state without its own reading are taken from the reading of the state before. No returned state ends the answer.

    Example: the picks of the block have the weights a 0.6 and b 0.4. The states {a} and {b} have the likelihoods 0.6
    and 0.4. After {a} only b is left, and after {b} only a. So {a, b} is reached in both ways: likelihood 1.
    """
    if type(rule) is not TopConfidence or rule.count > 1:
        return _line(canvas, reading, rule, budget)
    return _branches(canvas, reading, budget)


def _branches(canvas: Canvas, reading: Prediction, budget: DraftBudget) -> Drafting:
    """The tree for the rule of one token a step. With a grammar there is another rule, so picks force nothing."""
    block, drafts = canvas.block, dict[Block, Draft]()
    if not can_pay(_ONE, budget) or block.tokens.count(MASKED) < 2:
        return drafts
    if budget.row > 0.5 and most_likely(reading.of(block).confidences, STALE) < budget.row:
        return drafts  # mostly so under full load, so nothing is made before
    node, frontier = Node(block, 1.0, 0, reading), Frontier(budget.states)
    if budget.row or not budget.mrp_steps:
        frontier.rank(node, STALE)
        if budget.row and not _pays(node, canvas, budget.row):
            return drafts
    for number in range(budget.states):
        if number < budget.mrp_steps:
            (node.reading,) = yield make(Refine, (node.reading, node.state, ()))
            frontier.rank(node, FRESH)
        frontier.follow(node)
        following = frontier.choose(canvas.ends)
        if following is None or following.likelihood < budget.row:
            break
        node = following
        drafts[node.state] = make(Draft, (number + 1, node.last, node.likelihood))
    return drafts


def _pays(node: Node, canvas: Canvas, row: float) -> bool:
    """Whether a state right after the canvas's is worth its cost."""
    likely = (pick for likelihood, pick in node.likely() if likelihood >= row)
    return any(not canvas.ends(canvas.block.reveal((pick,))) for pick in likely)


def _line(canvas: Canvas, reading: Prediction, rule: Rule, budget: DraftBudget) -> Drafting:
    """The tree for any other rule: the states through which it goes on by the readings that there are."""
    way, drafts = _Way(canvas, rule, budget.row), dict[Block, Draft]()
    block, likelihood = canvas.block, 1.0
    if not budget.states or way.after(block, likelihood, reading) is None:
        return drafts
    while len(drafts) < budget.states:
        if len(drafts) < budget.mrp_steps:
            (reading,) = yield Refine(reading, block)
        following = way.after(block, likelihood, reading)
        if following is None:
            break
        block, likelihood, picks, promise = following
        drafts[block] = Draft(len(drafts) + 1, picks, promise)
    return drafts


@dataclass(frozen=True, slots=True)
class _Way:
    """The way of a rule through the states of a block. `row`: the cost of a state, in tokens."""

    canvas: Canvas
    rule: Rule
    row: float

    def after(
        self, state: Block, likelihood: float, reading: Prediction
    ) -> tuple[Block, float, tuple[Pick, ...], float] | None:
        """The state after one of so much likelihood, its own likelihood, the picks that lead there, its promise.

        The promise of a draft is one step of plain decoding, of about as many tokens as the step that leads to it.
        None if the rule does not go on, if the next state is not worth its cost, or if the answer ends in it.
        """
        picks = self.canvas.choose(self.rule, reading.of(state), state)
        if not picks:
            return None
        likelihood *= max(0.0, min(picks[0].confidence, SURE)) if self.rule == _NEXT else _SEVERAL  # never NaN
        promise, following = likelihood * len(picks), self.canvas.after(state, picks)
        if promise < self.row or self.canvas.ends(following):
            return None
        return following, likelihood, picks, promise
