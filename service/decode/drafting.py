"""Drafts for `speculative`: states that the decoding of a block is likely to pass through, to be verified.

`chain` is the published method: one draft after the other, each from MRP (MRP paper, speculative decoding). `tree`
chooses the states with the highest estimated likelihood that are worth their cost (`draft_budget.py`). Without MRP it
drafts from the backbone's last reading only, as FreeDave's self-drafting does. Drafts do not change the output: they
are only compared with the backbone's own picks.
"""

from __future__ import annotations

import heapq
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from itertools import count, islice
from operator import itemgetter
from typing import NamedTuple

from service.decode.block import MASKED, Block, Pick
from service.decode.canvas import Canvas
from service.decode.draft_budget import DraftBudget
from service.decode.policy import Query, Reading, Refine
from service.decode.rules import Leftmost, MostConfident, Rule


class Draft(NamedTuple):
    """A state to be verified: the picks that lead to it from the state before.

    `promise`: the expected number of tokens gained by verifying it; 0 in a chain, where it is not estimated.
    """

    picks: tuple[Pick, ...]
    promise: float = 0.0


Drafts = Mapping[Block, Draft]
Drafting = Generator[Query, tuple[Reading, ...], Drafts]

#: The weight of a pick as the next one is odds ** sharpness: _FRESH if MRP has read this very state, _STALE if the
#: reading is of an earlier state. Tuned on held-out problems of the demo that no reported number uses.
_FRESH, _STALE = 4.0, 2.0
#: Likelihood that several picks at once are the rule's next picks, measured for `threshold` .5 and .9 and
#: `tokens_per_step` 2.
_SEVERAL = 0.45
#: the rule whose picks have odds: one token a step
_ONE = MostConfident(1)
_LEFTMOST = Leftmost(1)
#: the most picks that are tried after a state
_WIDTH = 4
#: Confidences are clipped to these bounds, since a low temperature rounds them to 0 and 1.
_DOUBTFUL, _SURE = 1e-12, 1 - 1e-7


def chain(canvas: Canvas, reading: Reading, steps: int, rule: Rule, *, first: bool) -> Drafting:
    """A chain of up to `steps` states, each with one more draft than the one before. Ends at a complete state.

    `reading`: of the state before the canvas's. `first`: the first round of a block, whose first draft is MRP's. Later
    rounds begin with the picks of `reading`.
    """
    block, drafts = canvas.block, dict[Block, Draft]()
    picks = () if first else canvas.choose(rule, reading.of(block), block)
    while len(drafts) < steps and not block.complete:
        if not picks:
            (reading,) = yield Refine(reading, block)
            if not (picks := canvas.choose(rule, reading, block)):
                break  # the answer has ended
        block = canvas.after(block, picks)
        drafts[block], picks = Draft(picks), ()
    return drafts


def tree(canvas: Canvas, reading: Reading, rule: Rule, budget: DraftBudget) -> Drafting:
    """The likeliest states after the canvas's that the budget allows and that are worth their cost.

    `reading`: of the state before the canvas's. Each MRP forward reads the likeliest state that MRP has not read yet.
    The successors of a state without its own reading are taken from the reading of the state before. No returned state
    ends the answer.

    Example: the picks of the block have the weights a 0.6 and b 0.4. The states {a} and {b} have the likelihoods 0.6
    and 0.4. After {a} only b is left, and after {b} only a. So {a, b} is reached in both ways: likelihood 1.
    """
    block = canvas.block
    if (budget.row >= 1 and rule == _ONE) or _first_promise(block, reading, rule) < budget.row:
        return {}
    sources = {block: _Source.of(block, reading, _STALE)}
    nodes, seen = _grow(canvas, sources, rule, budget), set[Block]()
    for _ in range(budget.mrp_steps if len(nodes) > 1 else 0):
        unseen = next((node for node in nodes if node.state not in seen), None)
        if unseen is None:
            break
        (refined,) = yield Refine(unseen.source.reading, unseen.state)
        sources[unseen.state] = _Source.of(unseen.state, refined, _FRESH)
        seen.add(unseen.state)
        nodes = _grow(canvas, sources, rule, budget)
    return {node.state: Draft(node.picks, node.promise) for node in nodes[1:]}


def _first_promise(block: Block, reading: Reading, rule: Rule) -> float:
    """The expected tokens of the likeliest state right after the block.

    Under full load this is mostly below the cost of a row, and the search for drafts ends here.
    """
    if rule != _ONE:
        picks = rule(reading.of(block))
        return _likelihood(picks, rule) * len(picks)
    tokens = block.tokens
    masked = (pick for pick in reading.picks if tokens[pick.position] == MASKED)
    weights: list[float] = [_odds(pick.confidence) ** _STALE for pick in masked]
    return max(weights) / sum(weights)


@dataclass(frozen=True, slots=True)
class _Source:
    """The reading of a state. `ranked`: its picks with their weights, highest first."""

    reading: Reading
    ranked: tuple[tuple[float, Pick], ...]

    @classmethod
    def of(cls, state: Block, reading: Reading, sharpness: float) -> _Source:
        tokens = state.tokens
        weighted = [(_odds(pick[2]) ** sharpness, pick) for pick in reading.picks if tokens[pick[0]] == MASKED]
        weighted.sort(key=itemgetter(0), reverse=True)
        return cls(reading, tuple(weighted))

    def after(self, state: Block, rule: Rule, canvas: Canvas) -> Iterator[tuple[float, tuple[Pick, ...]]]:
        """The likely next picks in `state`, a successor of the state that was read, each with its likelihood."""
        if rule != _ONE:
            if picks := canvas.choose(rule, self.reading.of(state), state):
                yield _likelihood(picks, rule), picks
            return
        tokens = state.tokens
        left = [entry for entry in self.ranked if tokens[entry[1][0]] == MASKED]
        total = sum(map(itemgetter(0), left))
        for weight, pick in islice(left, _WIDTH):
            yield weight / total, (pick,)


@dataclass(slots=True)
class _Node:
    """A state that decoding may pass through.

    `likelihood`: the sum over all chosen ways to the state. `picks`: the last step of the likeliest way. `source`: the
    reading for its successors, inherited if the state itself was not read.
    """

    state: Block
    source: _Source
    picks: tuple[Pick, ...] = ()
    likelihood: float = 0.0
    _best: float = 0.0

    @property
    def promise(self) -> float:
        """The expected tokens gained: one step of plain decoding, of about as many tokens as the last step had."""
        return self.likelihood * len(self.picks)

    def met_by(self, likelihood: float, picks: tuple[Pick, ...], source: _Source) -> None:
        """Adds another way that leads to this state."""
        self.likelihood += likelihood
        if likelihood > self._best:
            self._best = likelihood
            self.picks = picks
            self.source = source


def _grow(canvas: Canvas, sources: Mapping[Block, _Source], rule: Rule, budget: DraftBudget) -> list[_Node]:
    """The root and the likeliest states after it that the budget allows. Every state follows one that leads to it."""
    root = canvas.block
    nodes = {root: _Node(root, sources[root], likelihood=1.0)}
    number, chosen = count(), dict[Block, _Node]()
    heap = [(-1.0, next(number), root)]
    while heap and len(chosen) <= budget.states:
        _, _, state = heapq.heappop(heap)
        node = nodes[state]
        if state in chosen:
            continue
        if node.promise < budget.row and state != root:
            break
        chosen[state] = node
        source = sources.get(state, node.source)
        for likelihood, picks in source.after(state, rule, canvas):
            following = canvas.after(state, picks)
            child = nodes.get(following)
            if child is None:
                if canvas.ends(following):
                    continue
                child = nodes[following] = _Node(following, source)
            child.met_by(node.likelihood * likelihood, picks, source)
            heapq.heappush(heap, (-child.likelihood, next(number), following))
    return list(chosen.values())


def _likelihood(picks: tuple[Pick, ...], rule: Rule) -> float:
    """The likelihood that the rule's picks are these. From left to right, one pick's place is certain."""
    return min(picks[0].confidence, 1.0) if rule == _LEFTMOST else _SEVERAL


def _odds(confidence: float) -> float:
    """The odds of a confidence: positive and finite for every float, even for NaN."""
    bounded = min(max(_DOUBTFUL, confidence), _SURE)
    return bounded / (1 - bounded)
