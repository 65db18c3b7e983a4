"""The search for the likeliest states of a block, for a rule that reveals one token a step.

`drafts.py` calls it, for every request in every step. So a state that is only met is a number, and a `Block` is made
only for a chosen state. Knows no budget and no MRP.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from service.decode.block import Block, Pick, new_tuple
from service.decode.policy import Prediction

#: The weight of a pick as the next one is odds ** sharpness. FRESH: MRP has read this very state. STALE: the prediction
#: is of an earlier state. Tuned on held-out problems of the demo that no reported number uses.
FRESH, STALE = 4.0, 2.0
#: the most picks that are tried after a state
_WIDTH = 4
#: Confidences are clipped to these bounds, since a low temperature rounds them to 0 and 1.
_DOUBTFUL, SURE = 1e-12, 1 - 1e-7


class Node:
    """A state from which the search goes on.

    `likelihood`: the probability that decoding passes through the state. `prediction`: the prediction of it or of a
    state before it. `last`: the pick that leads to it on its likeliest path. `picks`: the likeliest picks of the
    prediction, in order.
    `bits[i]`: the bit of pick i. A state's `number` is the OR of its picks' bits. `weights[i]`: the weight of pick i, 0
    once taken. `others`: the weight of all picks that are too unlikely to be listed.
    """

    __slots__ = ("bits", "last", "likelihood", "number", "others", "picks", "prediction", "state", "weights")

    def __init__(self, state: Block, likelihood: float, number: int, prediction: Prediction) -> None:
        self.state, self.likelihood, self.number, self.prediction = state, likelihood, number, prediction
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
        """The likeliest next picks with their probabilities."""
        total = self.total
        return [(weight / total, Pick(*pick)) for weight, pick in zip(self.weights[:_WIDTH], self.picks, strict=False)]


class BestFirstSearch:
    """A search over the states of a block, the likeliest first. `states`: the most states that are chosen.

    Its frontier holds the states one pick after a chosen one. The likelihood of a state is the sum over all paths to
    it. Its next picks are those of its likeliest path.
    """

    def __init__(self, states: int) -> None:
        self._num_listed = states + _WIDTH
        self._likelihoods: dict[int, float] = {}
        self._paths: dict[int, tuple[float, Node, int]] = {}
        self._bits: dict[int, int] = {}

    def rank(self, node: Node, sharpness: float) -> None:
        """Ranks the next picks of a node by the confidences of its prediction."""
        bits, (positions, tokens, confidences, *_) = self._bits, node.prediction.of(node.state)
        order = sorted(range(len(positions)), key=confidences.__getitem__, reverse=True)
        weights = [
            (sure / (1.0 - sure) if _DOUBTFUL < sure < SURE else _clipped_odds(sure)) ** sharpness
            for sure in [confidences[index] for index in order]
        ]
        end = self._num_listed
        node.weights, node.others = weights[:end], sum(weights[end:])
        node.picks = [(positions[index], tokens[index], confidences[index]) for index in order[:end]]
        node.bits = [bits.setdefault(token << 16 | position, 1 << len(bits)) for position, token, _ in node.picks]

    def expand(self, node: Node) -> None:
        """Adds the states after a chosen one to the frontier."""
        likelihoods, paths, before, bits, tried = self._likelihoods, self._paths, node.number, node.bits, 0
        share = node.likelihood / node.total
        for index, weight in enumerate(node.weights):
            if not weight:
                continue
            number, likelihood = before | bits[index], share * weight
            if number in likelihoods:
                likelihoods[number] += likelihood
                if likelihood > paths[number][0]:
                    paths[number] = likelihood, node, index
            elif number not in paths:  # else it is chosen
                likelihoods[number], paths[number] = likelihood, (likelihood, node, index)
            tried += 1
            if tried == _WIDTH:
                break

    def choose(self, ends: Callable[[Block], bool]) -> Node | None:
        """Takes the likeliest state that does not end the answer off the frontier. None if there is none."""
        likelihoods = self._likelihoods
        while likelihoods:
            number = max(likelihoods, key=likelihoods.__getitem__)
            _, before, index = self._paths[number]
            node = _after(before, index, likelihoods.pop(number), number)
            if not ends(node.state):
                return node
        return None


def _after(before: Node, index: int, likelihood: float, number: int) -> Node:
    """The state after pick `index` of a node. It inherits the prediction."""
    position, token, confidence = before.picks[index]
    last = (new_tuple(Pick, (position, token, confidence, None)),)
    node = Node(before.state.reveal(last), likelihood, number, before.prediction)
    node.last, node.picks, node.bits = last, before.picks, before.bits
    node.weights, node.others = before.weights.copy(), before.others
    node.weights[index] = 0.0
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
