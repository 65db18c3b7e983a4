"""Reveal rules: each chooses the picks of a prediction that are revealed next.

A mode may consist of a rule only (`RuleMode`). `speculative` gives any rule's output in fewer forwards. A rule sees
one prediction and keeps no state. To change a rule, change both `__call__` and `device_picks`, or delete
`device_picks`, since on CUDA the device picks by these alone. `tests/decode/test_rules.py` compares the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, takewhile
from math import inf
from operator import mul
from typing import ClassVar, NamedTuple

from service.decode.block import Pick
from service.decode.policy import Prediction

#: the order of a rule's picks: by confidence, descending; from left to right; by entropy, ascending; by confidence, as
#: long as the product of confidences is above a bound
CONFIDENCE, LEFT, ENTROPY, JOINTLY = 0, 1, 2, 3


class DevicePicks(NamedTuple):
    """The picks of a rule as the device computes them (`_rule_picks` in `engine/forward/state_kernels.py`).

    They are the first ones in the order `by`: `min_count` at least, more while `entropy_bounded` allows it by `bound`
    (nats), and all of a confidence > `threshold`. In the order `JOINTLY` the product of confidences is above `bound`.
    """

    by: int = CONFIDENCE
    min_count: int = 1
    threshold: float = inf
    bound: float = inf


class Rule:
    """The base of all rules."""

    __slots__ = ()
    is_in_order: ClassVar[bool] = False  # whether its picks are the leftmost ones, without gaps

    def __init_subclass__(cls) -> None:
        """A class that overrides `__call__` alone makes other picks than the device would, and another number."""
        for name in ("device_picks", "num_picks"):
            if "__call__" in cls.__dict__ and name not in cls.__dict__:
                setattr(cls, name, getattr(Rule, name))

    @property
    def device_picks(self) -> DevicePicks | None:
        """The same picks for the device. None: it cannot compute them, so each forward waits for the last one's."""
        return None

    @property
    def needs_entropy(self) -> bool:
        """Whether the prediction must have entropies."""
        return False

    @property
    def num_picks(self) -> int | None:
        """The number of picks, or all if there are fewer. None if the prediction decides it."""
        return None

    @property
    def in_order(self) -> Rule:
        """The same rule from left to right, for answers with a grammar and causal models. Default: one pick."""
        return self if self.is_in_order else LeftToRight()

    def __call__(self, prediction: Prediction) -> tuple[Pick, ...]:
        """The picks to reveal."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class TopConfidence(Rule):
    """`static`: the `count` picks of highest confidence (`low_confidence_static` of SDAR's generate.py)."""

    count: int = 1

    @property
    def device_picks(self) -> DevicePicks:
        return DevicePicks(min_count=self.count)

    @property
    def num_picks(self) -> int:
        return self.count

    @property
    def in_order(self) -> Rule:
        return LeftToRight(self.count)

    def __call__(self, prediction: Prediction) -> tuple[Pick, ...]:
        return prediction.most_confident(self.count)


@dataclass(frozen=True, slots=True)
class ConfidenceAbove(Rule):
    """`dynamic`: every pick of confidence > `threshold`, at least one (`low_confidence_dynamic` of generate.py)."""

    threshold: float

    @property
    def device_picks(self) -> DevicePicks:
        return DevicePicks(threshold=self.threshold)

    @property
    def in_order(self) -> Rule:
        return LeftToRightAbove(self.threshold)

    def __call__(self, prediction: Prediction) -> tuple[Pick, ...]:
        sure = [index for index, confidence in enumerate(prediction.confidences) if confidence > self.threshold]
        return prediction.picked(sure) if sure else prediction.most_confident()


@dataclass(frozen=True, slots=True)
class LeftToRightAbove(Rule):
    """`dynamic` with a grammar: the leftmost pick, and later picks up to the first of confidence <= `threshold`."""

    is_in_order: ClassVar[bool] = True
    threshold: float

    def __call__(self, prediction: Prediction) -> tuple[Pick, ...]:
        sure = takewhile(lambda confidence: confidence > self.threshold, prediction.confidences[1:])
        return prediction.picked(range(1 + sum(1 for _ in sure)))


@dataclass(frozen=True, slots=True)
class JointlyAbove(Rule):
    """MRP's picks in `direct` with a threshold: the most confident ones while their product is > `threshold`.

    The product of confidences is the probability that all of these tokens are right, if they are independent. There
    may be no such pick. This rule is our own. After other picks, `direct` divides the threshold by their product.
    """

    threshold: float

    @property
    def device_picks(self) -> DevicePicks:
        return DevicePicks(JOINTLY, min_count=0, bound=self.threshold)

    @property
    def in_order(self) -> Rule:
        return LeftToRightJointlyAbove(self.threshold)

    def __call__(self, prediction: Prediction) -> tuple[Pick, ...]:
        return _jointly_above(prediction.most_confident(len(prediction.positions)), self.threshold)


@dataclass(frozen=True, slots=True)
class LeftToRightJointlyAbove(Rule):
    """`JointlyAbove` with a grammar: the leftmost picks."""

    is_in_order: ClassVar[bool] = True
    threshold: float

    def __call__(self, prediction: Prediction) -> tuple[Pick, ...]:
        return _jointly_above(prediction.picks, self.threshold)


def _jointly_above(picks: tuple[Pick, ...], threshold: float) -> tuple[Pick, ...]:
    products = accumulate((pick.confidence for pick in picks), mul)
    return picks[: sum(1 for _ in takewhile(lambda product: product > threshold, products))]


@dataclass(frozen=True, slots=True)
class LeftToRight(Rule):
    """`sequential`: the `count` leftmost picks (`sequential` of generate.py), and more as long as `bound` allows.

    `bound`: the bound of `entropy_bounded`, in nats, in the order of the text, which is our own combination. 0: none.
    """

    is_in_order: ClassVar[bool] = True
    count: int = 1
    bound: float = 0.0

    @property
    def device_picks(self) -> DevicePicks:
        return DevicePicks(LEFT, self.count, bound=self.bound or inf)

    @property
    def needs_entropy(self) -> bool:
        return self.bound > 0

    @property
    def num_picks(self) -> int | None:
        return None if self.needs_entropy else self.count

    def __call__(self, prediction: Prediction) -> tuple[Pick, ...]:
        indices = range(len(prediction.positions))
        if not self.needs_entropy:
            return prediction.picked(indices[: self.count])
        return entropy_bounded(prediction, indices, self.bound, min_count=self.count)


@dataclass(frozen=True, slots=True)
class LowestEntropy(Rule):
    """`entropy`: the picks of lowest entropy within `bound` (nats). Ties go to the lowest position."""

    bound: float

    @property
    def device_picks(self) -> DevicePicks:
        return DevicePicks(ENTROPY, bound=self.bound)

    @property
    def needs_entropy(self) -> bool:
        return True

    @property
    def in_order(self) -> Rule:
        return LeftToRight(1, self.bound)

    def __call__(self, prediction: Prediction) -> tuple[Pick, ...]:
        ordered = sorted(range(len(prediction.positions)), key=prediction.entropies.__getitem__)
        return entropy_bounded(prediction, ordered, self.bound)


def entropy_bounded(
    prediction: Prediction, ordered: Sequence[int], bound: float, min_count: int = 1
) -> tuple[Pick, ...]:
    """The picks of the longest beginning of `ordered` within the bound (in nats), at least `min_count` picks.

    `ordered`: indices of masked positions in the prediction. The bound is EB-Sampler's (arXiv 2505.24857, section 4):
    the sum of the positions' entropies less the largest entropy bounds the error of drawing the tokens independently.
    SDAR's generate.py (`entropy_bounded`) bounds the whole sum instead, and cannot run: it uses the entropy of the
    chosen tokens' probabilities over the block, and it never makes the index to which it writes.
    """
    entropies, largest, sum_without_largest = prediction.entropies, 0.0, 0.0
    for count, index in enumerate(ordered):
        entropy = entropies[index]
        if entropy > largest:
            entropy, largest = largest, entropy
        sum_without_largest += entropy
        if sum_without_largest > bound and count >= min_count:
            return prediction.picked(ordered[:count])
    return prediction.picked(ordered)
