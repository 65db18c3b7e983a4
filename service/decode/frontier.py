"""The search for the likeliest states of a block, for a rule that reveals one token a step.

`tree.py` calls it, for every request in every step. So states that are only met are numbers, and `Block`s are made of
those alone that are chosen. Knows no budget and no MRP.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from service.decode.block import Block, Pick, make
from service.decode.policy import Prediction

#: The weight of a pick as the next one is odds ** sharpness: FRESH if MRP has read this very state, STALE if the
#: reading is of an earlier state. Tuned on held-out problems of the demo that no reported number uses.
FRESH, STALE = 4.0, 2.0
#: the most picks that are tried after a state
_WIDTH = 4
#: Confidences are clipped to these bounds, since a low temperature rounds them to 0 and 1.
_DOUBTFUL, SURE = 1e-12, 1 - 1e-7


class Node:
    """A state from which the search goes on.

    `likelihood`: that decoding passes through it. `reading`: of it or of a state before it. `last`: the pick that
    leads to it on its likeliest way. `picks`: the likeliest ones of the reading, in order. `bits`: of each of them its
    bit in `number`, which identifies a state among those after the same one. `weights`: likewise, 0 if the pick is
    taken; `others`: of the picks that are too unlikely to be looked at, together.
    """

    __slots__ = ("bits", "last", "likelihood", "number", "others", "picks", "reading", "state", "weights")

    def __init__(self, state: Block, likelihood: float, number: int, reading: Prediction) -> None:
        self.state, self.likelihood, self.number, self.reading = state, likelihood, number, reading
        self.last: tuple[Pick, ...] = ()
        self.picks: list[tuple[int, int, float]] = []
        self.bits: list[int] = []
        self.weights: list[float] = []
        self.others = 0.0

    @property
    def total(self) -> float:
        """The weight of all picks that are left, above 0 even where it rounds to it."""
        return sum(self.weights) + self.others or 1.0

    def likely(self) -> list[tuple[float, Pick]]:
        """The likeliest next picks, and how likely each is."""
        total = self.total
        return [(weight / total, Pick(*said)) for weight, said in zip(self.weights[:_WIDTH], self.picks, strict=False)]


class Frontier:
    """The states that are one pick behind chosen ones, and not chosen themselves. `states`: to be chosen, at most.

    The likelihood of a state is the sum over all ways to it. What is said of the picks after it comes from its
    likeliest way.
    """

    def __init__(self, states: int) -> None:
        self._looked_at = states + _WIDTH
        self._likelihoods: dict[int, float] = {}
        self._ways: dict[int, tuple[float, Node, int]] = {}
        self._bits: dict[int, int] = {}

    def rank(self, node: Node, sharpness: float) -> None:
        """Goes on from a node by what its reading says of the positions that are masked there."""
        bits, (positions, tokens, confidences, *_) = self._bits, node.reading.of(node.state)
        order = sorted(range(len(positions)), key=confidences.__getitem__, reverse=True)
        weights = [
            (sure / (1.0 - sure) if _DOUBTFUL < sure < SURE else _clipped_odds(sure)) ** sharpness
            for sure in [confidences[place] for place in order]
        ]
        end = self._looked_at
        node.weights, node.others = weights[:end], sum(weights[end:])
        node.picks = [(positions[place], tokens[place], confidences[place]) for place in order[:end]]
        node.bits = [bits.setdefault(token << 16 | place, 1 << len(bits)) for place, token, _ in node.picks]

    def follow(self, node: Node) -> None:
        """Adds the states after a chosen one."""
        likelihoods, ways, before, bits, tried = self._likelihoods, self._ways, node.number, node.bits, 0
        share = node.likelihood / node.total
        for place, weight in enumerate(node.weights):
            if not weight:
                continue
            number, way = before | bits[place], share * weight
            if number in likelihoods:
                likelihoods[number] += way
                if way > ways[number][0]:
                    ways[number] = way, node, place
            elif number not in ways:  # else it is chosen
                likelihoods[number], ways[number] = way, (way, node, place)
            tried += 1
            if tried == _WIDTH:
                break

    def choose(self, ends: Callable[[Block], bool]) -> Node | None:
        """Takes the likeliest state out that does not end the answer. None if there is none."""
        likelihoods = self._likelihoods
        while likelihoods:
            number = max(likelihoods, key=likelihoods.__getitem__)
            _, before, place = self._ways[number]
            node = _after(before, place, likelihoods.pop(number), number)
            if not ends(node.state):
                return node
        return None


def _after(before: Node, place: int, likelihood: float, number: int) -> Node:
    """The state after the pick at a place. It inherits the reading."""
    position, token, confidence = before.picks[place]
    last = (make(Pick, (position, token, confidence, None)),)
    node = Node(before.state.reveal(last), likelihood, number, before.reading)
    node.last, node.picks, node.bits = last, before.picks, before.bits
    node.weights, node.others = before.weights.copy(), before.others
    node.weights[place] = 0.0
    return node


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
