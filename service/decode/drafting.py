"""What `speculative` puts to verification: states that a block's decoding is likely to pass through.

`chain` is the published way: one draft after the other, each from MRP (MRP paper, speculative decoding). `tree`
spends states and MRP forwards where a model of the likelihood says that they pay (`terms.py`); without
MRP it drafts from the backbone's last reading alone, as FreeDave's self-drafting does. Neither touches what comes
out: drafts are only ever compared with what the backbone says.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from itertools import count, islice
from operator import itemgetter
from typing import NamedTuple

from service.decode.block import MASKED, Block, Pick
from service.decode.draft_budget import DraftBudget
from service.decode.policy import Query, Reading, Refine
from service.decode.rules import MostConfident, Rule


class Draft(NamedTuple):
    """A state put to verification: the picks that lead to it from the state before.

    `promise`: how many tokens it is likely to be worth; nothing is known of a chain's.
    """

    picks: tuple[Pick, ...]
    promise: float = 0.0


Drafts = Mapping[Block, Draft]
#: whether nothing is wanted beyond a state, so that there is nothing to verify
Ends = Callable[[Block], bool]
Drafting = Generator[Query, tuple[Reading, ...], Drafts]

#: A pick is the likelier the next one the higher the power of its odds: of the state that was read, and of a later one
#: that nothing has been said of yet. Tuned on held-out problems of the demo that no reported number uses.
_FRESH, _STALE = 4.0, 2.0
#: Several picks at once are the same in the next state: measured for `threshold` .5 and .9 and `tokens_per_step` 2.
_SEVERAL = 0.45
#: picks that are tried after a state
_WIDTH = 4
#: Confidences outside these bounds count as the bound: a cold temperature rounds them to 0 and 1.
_DOUBTFUL, _SURE = 1e-12, 1 - 1e-7


def chain(block: Block, reading: Reading, steps: int, rule: Rule, *, first: bool) -> Drafting:
    """`steps` states, or up to a complete one, each the one before and a draft; `reading`: of the state before `block`.

    The first draft of a block is MRP's (`first`), later rounds begin with what `reading` says is next.
    """
    drafts: dict[Block, Draft] = {}
    picks = () if first else rule(reading.of(block))
    while len(drafts) < steps and not block.complete:
        if not picks:
            (reading,) = yield Refine(reading, block)
            picks = rule(reading)
        block = block.reveal(picks)
        drafts[block], picks = Draft(picks), ()
    return drafts


def tree(block: Block, reading: Reading, rule: Rule, terms: DraftBudget, ends: Ends) -> Drafting:
    """The likeliest states after `block`, as many as the terms allow and as are worth their price.

    `reading` is of the state before. Every forward of MRP looks at the likeliest state that it has not seen; a state
    that it has not seen goes on by what was said of the one before. No state `ends` the block.
    """
    if (terms.row >= 1 and rule == MostConfident(1)) or _first_promise(block, reading, rule) < terms.row:
        return {}
    sources = {block: _Source.of(block, reading, _STALE)}
    nodes, seen = _grow(block, sources, rule, terms, ends), set[Block]()
    for _ in range(terms.mrp_steps if len(nodes) > 1 else 0):
        unseen = next((node for node in nodes if node.state not in seen), None)
        if unseen is None:
            break
        (refined,) = yield Refine(unseen.source.reading, unseen.state)
        sources[unseen.state] = _Source.of(unseen.state, refined, _FRESH)
        seen.add(unseen.state)
        nodes = _grow(block, sources, rule, terms, ends)
    return {node.state: Draft(node.picks, node.promise) for node in nodes[1:]}


def _first_promise(block: Block, reading: Reading, rule: Rule) -> float:
    """What the likeliest state right after the block promises. A full machine mostly learns here that nothing pays."""
    if rule != MostConfident(1):
        return _SEVERAL * len(rule(reading.of(block)))
    tokens = block.tokens
    masked = (pick for pick in reading.picks if tokens[pick.position] == MASKED)
    weights: list[float] = [_odds(pick.confidence) ** _STALE for pick in masked]
    return max(weights) / sum(weights)


@dataclass(frozen=True, slots=True)
class _Source:
    """What was said of a state. `ranked`: weights of its picks to be the next, highest first."""

    reading: Reading
    ranked: tuple[tuple[float, Pick], ...]

    @classmethod
    def of(cls, state: Block, reading: Reading, sharpness: float) -> _Source:
        tokens = state.tokens
        weighted = [(_odds(pick[2]) ** sharpness, pick) for pick in reading.picks if tokens[pick[0]] == MASKED]
        weighted.sort(key=itemgetter(0), reverse=True)
        return cls(reading, tuple(weighted))

    def after(self, state: Block, rule: Rule) -> Iterator[tuple[float, tuple[Pick, ...]]]:
        """What may be revealed next in a state that goes on from the one that was read, and how likely that is."""
        if rule != MostConfident(1):
            yield _SEVERAL, rule(self.reading.of(state))
            return
        tokens = state.tokens
        left = [entry for entry in self.ranked if tokens[entry[1][0]] == MASKED]
        total = sum(map(itemgetter(0), left))
        for weight, pick in islice(left, _WIDTH):
            yield weight / total, (pick,)


@dataclass(slots=True)
class _Node:
    """A state that may be met. `likelihood` adds up over the chosen ways to it; `picks` ends the likeliest of them.

    `source`: what its future is read from; inherited if nothing was said of the state itself.
    """

    state: Block
    source: _Source
    picks: tuple[Pick, ...] = ()
    likelihood: float = 0.0
    _best: float = 0.0

    @property
    def promise(self) -> float:
        """Tokens it is likely to be worth: a step more of plain decoding, of about as many as led here."""
        return self.likelihood * len(self.picks)

    def met_by(self, likelihood: float, picks: tuple[Pick, ...], source: _Source) -> None:
        """Another way leads here."""
        self.likelihood += likelihood
        if likelihood > self._best:
            self._best = likelihood
            self.picks = picks
            self.source = source


def _grow(root: Block, sources: Mapping[Block, _Source], rule: Rule, terms: DraftBudget, ends: Ends) -> list[_Node]:
    """The root and the likeliest states after it that the terms allow, each behind one that leads to it."""
    nodes = {root: _Node(root, sources[root], likelihood=1.0)}
    number, chosen = count(), dict[Block, _Node]()
    heap = [(-1.0, next(number), root)]
    while heap and len(chosen) <= terms.states:
        _, _, state = heapq.heappop(heap)
        node = nodes[state]
        if state in chosen:
            continue
        if node.promise < terms.row and state != root:
            break
        chosen[state] = node
        source = sources.get(state, node.source)
        for likelihood, picks in source.after(state, rule):
            following = state.reveal(picks)
            if ends(following):
                continue
            child = nodes.setdefault(following, _Node(following, source))
            child.met_by(node.likelihood * likelihood, picks, source)
            heapq.heappush(heap, (-child.likelihood, next(number), following))
    return list(chosen.values())


def _odds(confidence: float) -> float:
    """Positive and finite for every float, not a number included."""
    bounded = min(max(_DOUBTFUL, confidence), _SURE)
    return bounded / (1 - bounded)
