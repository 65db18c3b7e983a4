"""A tree of drafts: the likeliest states that the decoding of a block may pass through.

`speculative` calls it, and `engine/drafting/costs.py` measures it. States are chosen one after another, the likeliest
first, so a state is read by MRP before its successors are looked at and nothing is ever looked at again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from operator import itemgetter

from service.decode.block import MASKED, Block, Pick
from service.decode.canvas import Canvas
from service.decode.draft_budget import DraftBudget
from service.decode.drafting import Draft, Drafting, Drafts
from service.decode.policy import Reading, Refine
from service.decode.rules import Leftmost, MostConfident, Rule

#: The weight of a pick as the next one is odds ** sharpness: _FRESH if MRP has read this very state, _STALE if the
#: reading is of an earlier state. Tuned on held-out problems of the demo that no reported number uses.
_FRESH, _STALE = 4.0, 2.0
#: Likelihood that several picks at once are the rule's next picks, measured for `threshold` .5 and .9 and
#: `tokens_per_step` 2.
_SEVERAL = 0.45
#: the rule whose picks have odds: one token a step
_ONE = MostConfident(1)
#: the rule whose next place is certain
_NEXT = Leftmost(1)
#: the most picks that are tried after a state
_WIDTH = 4
#: Confidences are clipped to these bounds, since a low temperature rounds them to 0 and 1.
_DOUBTFUL, _SURE = 1e-12, 1 - 1e-7

#: picks that may be the next ones, and how likely that is
_Likely = tuple[float, tuple[Pick, ...]]
_WEIGHT = itemgetter(0)


def tree(canvas: Canvas, reading: Reading, rule: Rule, budget: DraftBudget) -> Drafting:
    """The likeliest states after the canvas's that the budget allows and that are worth their cost.

    `reading`: of the state before. MRP reads the canvas's state and those that are chosen first. The successors of a
    state without its own reading are taken from the reading of the state before. No returned state ends the answer.

    Example: the picks of the block have the weights a 0.6 and b 0.4. The states {a} and {b} have the likelihoods 0.6
    and 0.4. After {a} only b is left, and after {b} only a. So {a, b} is reached in both ways: likelihood 1.
    """
    if not budget.states or (budget.row >= 1 and rule == _ONE):
        return {}
    block = canvas.block
    source = _source(block, reading, rule, _STALE)
    if not _pays(source.after(block, canvas), canvas, budget):
        return {}
    growth = _Growth(_Node(block, source), budget, canvas)
    for number, node in enumerate(growth):
        if number < min(budget.mrp_steps, budget.states):
            (refined,) = yield Refine(node.source.reading, node.state)
            node.source = _source(node.state, refined, rule, _FRESH)
        growth.follow(node)
    return growth.drafts()


def _pays(steps: Iterable[_Likely], canvas: Canvas, budget: DraftBudget) -> bool:
    """Whether a state right after the canvas's is worth its cost.

    Under full load this is mostly not so, and the search for drafts ends here.
    """
    likely = (picks for likelihood, picks in steps if likelihood * len(picks) >= budget.row)
    return any(not canvas.ends(canvas.after(canvas.block, picks)) for picks in likely)


@dataclass(frozen=True, slots=True)
class _Single:
    """The reading of a state under a rule that picks one token. `ranked`: picks with their weights, highest first."""

    reading: Reading
    ranked: list[tuple[float, Pick]]

    def after(self, state: Block, canvas: Canvas) -> list[_Likely]:  # noqa: ARG002 - as for other rules
        """The likely next picks in `state`, which is the state that was read or a successor."""
        tokens = state.tokens
        left = [entry for entry in self.ranked if tokens[entry[1][0]] == MASKED]
        total = sum(map(_WEIGHT, left))
        return [(weight / total, (pick,)) for weight, pick in left[:_WIDTH]]


@dataclass(frozen=True, slots=True)
class _Several:
    """The reading of a state under any other rule."""

    reading: Reading
    rule: Rule

    def after(self, state: Block, canvas: Canvas) -> list[_Likely]:
        """What the rule picks in `state`, which is the state that was read or a successor."""
        picks = canvas.choose(self.rule, self.reading.of(state), state)
        if not picks:
            return []
        return [(min(picks[0].confidence, _SURE) if self.rule == _NEXT else _SEVERAL, picks)]


_Source = _Single | _Several


def _source(state: Block, reading: Reading, rule: Rule, sharpness: float) -> _Source:
    """What the reading says of the picks after `state`."""
    if rule != _ONE:
        return _Several(reading, rule)
    tokens = state.tokens
    weighted = [(_odds(pick[2]) ** sharpness, pick) for pick in reading.picks if tokens[pick[0]] == MASKED]
    weighted.sort(key=_WEIGHT, reverse=True)
    return _Single(reading, weighted)


@dataclass(slots=True, eq=False)
class _Node:
    """A state that decoding may pass through.

    `likelihood`: the sum over all chosen ways to the state. `picks`: the last step of the likeliest way, whose
    likelihood is `best`. `source`: the reading for its successors, inherited if the state itself was not read.
    """

    state: Block
    source: _Source
    picks: tuple[Pick, ...] = ()
    likelihood: float = 1.0
    best: float = 1.0
    left: bool = False

    @property
    def promise(self) -> float:
        """The expected tokens gained: one step of plain decoding, of about as many tokens as the last step had."""
        return self.likelihood * len(self.picks)


class _Growth:
    """A growing tree. Iterating chooses its states: the root, then always the likeliest that is not chosen yet.

    The successors of a chosen state are to be added before the next is chosen.
    """

    def __init__(self, root: _Node, budget: DraftBudget, canvas: Canvas) -> None:
        self._root, self._budget, self._canvas = root, budget, canvas
        self._nodes: dict[tuple[int, ...], _Node] = {}
        self._number = count()
        self._heap: list[tuple[float, int, _Node]] = []
        self._chosen: list[_Node] = []

    def __iter__(self) -> Iterator[_Node]:
        yield self._root
        while self._heap and len(self._chosen) < self._budget.states:
            _, _, node = heappop(self._heap)
            if node.left:
                continue
            node.left = True
            if self._canvas.ends(node.state):
                continue
            if node.promise < self._budget.row:
                break
            self._chosen.append(node)
            yield node

    def follow(self, node: _Node) -> None:
        """Adds the states after a chosen one."""
        nodes, heap, source, reached = self._nodes, self._heap, node.source, node.likelihood
        for likelihood, picks in source.after(node.state, self._canvas):
            way = reached * likelihood
            following = self._canvas.after(node.state, picks)
            child = nodes.get(following.tokens)
            if child is None:
                child = nodes[following.tokens] = _Node(following, source, picks, way, way)
            else:
                child.likelihood += way
                if way > child.best:
                    child.best, child.picks, child.source = way, picks, source
            if not child.left:
                heappush(heap, (-child.likelihood, next(self._number), child))

    def drafts(self) -> Drafts:
        """The chosen states without the root."""
        return {node.state: Draft(node.picks, node.promise) for node in self._chosen}


def _odds(confidence: float) -> float:
    """The odds of a confidence: positive and finite for every float, even for NaN."""
    if not _DOUBTFUL < confidence < _SURE:
        confidence = _SURE if confidence >= _SURE else _DOUBTFUL
    return confidence / (1 - confidence)
