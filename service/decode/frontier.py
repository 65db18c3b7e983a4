"""The search for the likeliest states of a block, for a rule that reveals one token a step.

`tree.py` calls it, for every request in every step. So states that are only met are numbers, and `Block`s are made of
those alone that are chosen. Knows no budget and no MRP.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from operator import itemgetter

from service.decode.block import MASKED, Block, Pick
from service.decode.policy import Reading

#: The weight of a pick as the next one is odds ** sharpness: FRESH if MRP has read this very state, STALE if the
#: reading is of an earlier state. Tuned on held-out problems of the demo that no reported number uses.
FRESH, STALE = 4.0, 2.0
#: the most picks that are tried after a state
_WIDTH = 4
#: Confidences are clipped to these bounds, since a low temperature rounds them to 0 and 1.
_DOUBTFUL, SURE = 1e-12, 1 - 1e-7
#: bits of a token in a state's number
_BITS = 32
#: what a reading says of a position: position, token, confidence
_Said = tuple[int, int, float]
_CONFIDENCE = itemgetter(2)


@dataclass(slots=True, eq=False)
class Node:
    """A state from which the search goes on.

    `likelihood`: that decoding passes through it. `number`: identifies it among the states after the same one: the
    token of each pick since then, plus one, in 32 bits at its position. `reading`: of it or of a state before it.
    `last`: the pick that leads to it on its likeliest way. `ranked`: position, token and confidence of the picks of the
    reading that are left, the likeliest first, with `weights`.
    """

    state: Block
    likelihood: float
    number: int
    reading: Reading
    last: tuple[Pick, ...] = ()
    ranked: list[_Said] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)

    def rank(self, sharpness: float) -> None:
        """Goes on by what its reading says of the positions that are masked here."""
        reading, tokens = self.reading, self.state.tokens
        said = zip(reading.positions, reading.tokens, reading.confidences, strict=True)
        self.ranked = sorted([one for one in said if tokens[one[0]] == MASKED], key=_CONFIDENCE, reverse=True)
        self.weights = [
            (sure / (1.0 - sure) if _DOUBTFUL < sure < SURE else _clipped_odds(sure)) ** sharpness
            for _, _, sure in self.ranked
        ]

    def likely(self) -> list[tuple[float, Pick]]:
        """The likeliest next picks, and how likely each is."""
        total = sum(self.weights)
        likeliest = zip(self.weights[:_WIDTH], self.ranked, strict=False)
        return [(weight / total, Pick(*said)) for weight, said in likeliest]

    def after(self, place: int, likelihood: float, number: int) -> Node:
        """The state after the pick at a place. It inherits the reading."""
        ranked, weights, behind = self.ranked, self.weights, place + 1
        last = (Pick(*ranked[place]),)
        return Node(
            self.state.reveal(last), likelihood, number, self.reading, last,
            ranked[:place] + ranked[behind:], weights[:place] + weights[behind:],
        )  # fmt: skip


class Frontier:
    """The states that are one pick behind chosen ones, and not chosen themselves.

    The likelihood of a state is the sum over all ways to it. What is said of the picks after it comes from its
    likeliest way.
    """

    def __init__(self) -> None:
        self._likelihoods: dict[int, float] = {}
        self._ways: dict[int, tuple[float, Node, int]] = {}

    def follow(self, node: Node) -> None:
        """Adds the states after a chosen one."""
        likelihoods, ways, before, weights = self._likelihoods, self._ways, node.number, node.weights
        share = node.likelihood / (sum(weights) or 1.0)
        for place, (position, token, _) in enumerate(node.ranked[:_WIDTH]):
            number, way = before + (token + 1 << _BITS * position), share * weights[place]
            if number in likelihoods:
                likelihoods[number] += way
                if way > ways[number][0]:
                    ways[number] = way, node, place
            elif number not in ways:  # else it is chosen
                likelihoods[number], ways[number] = way, (way, node, place)

    def choose(self, ends: Callable[[Block], bool]) -> Node | None:
        """Takes the likeliest state out that does not end the answer. None if there is none."""
        likelihoods = self._likelihoods
        while likelihoods:
            number = max(likelihoods, key=likelihoods.__getitem__)
            _, before, place = self._ways[number]
            node = before.after(place, likelihoods.pop(number), number)
            if not ends(node.state):
                return node
        return None


def most_likely(confidences: Iterable[float], sharpness: float) -> float:
    """A bound above the likelihood of each of at least two picks: by the two surest of them, and at least 0.5."""
    *_, second, first = sorted(confidences)
    if not _DOUBTFUL < second <= first < SURE:
        return 1.0
    ratio = second * (1.0 - first) / (first * (1.0 - second))
    return float(1.0 / (1.0 + ratio**sharpness))


def _clipped_odds(confidence: float) -> float:
    """The odds of a confidence that is out of bounds or NaN."""
    clipped = SURE if confidence >= SURE else _DOUBTFUL
    return clipped / (1.0 - clipped)
