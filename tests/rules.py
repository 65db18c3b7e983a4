"""Examples of every rule, by its class, and a mode whose rule only the host knows, as CONTRIBUTING.md has one added."""

import sys
from collections.abc import Iterator, Mapping
from math import inf
from typing import ClassVar

from hypothesis import strategies as st

from service.decode.block import Pick
from service.decode.mode import RuleMode
from service.decode.policy import Prediction
from service.decode.rules import (
    ENTROPY,
    JOINTLY,
    LEFT,
    ConfidenceAbove,
    DevicePicks,
    JointlyAbove,
    LeftToRight,
    LeftToRightAbove,
    LeftToRightJointlyAbove,
    LowestEntropy,
    Rule,
    TopConfidence,
)

THRESHOLDS, BOUNDS = st.sampled_from([0.1, 0.3, 0.5, 0.9, 1.0]), st.sampled_from([0.0, 0.1, 0.7, 5.0])
EXAMPLES: Mapping[type[Rule], st.SearchStrategy[Rule]] = {
    TopConfidence: st.builds(TopConfidence, st.sampled_from([1, 3, 64])),
    ConfidenceAbove: st.builds(ConfidenceAbove, THRESHOLDS),
    LeftToRight: st.builds(LeftToRight, st.sampled_from([1, 2, 64]), st.one_of(st.just(0.0), BOUNDS)),
    LowestEntropy: st.builds(LowestEntropy, BOUNDS),
    JointlyAbove: st.builds(JointlyAbove, THRESHOLDS),
    LeftToRightAbove: st.builds(LeftToRightAbove, THRESHOLDS),
    LeftToRightJointlyAbove: st.builds(LeftToRightJointlyAbove, THRESHOLDS),
}


def served_rules(base: type[Rule] = Rule) -> Iterator[type[Rule]]:
    """All classes of rules in `service`."""
    for rule in base.__subclasses__():
        if getattr(sys.modules[rule.__module__], rule.__name__, None) is rule and rule.__module__.startswith(
            "service."
        ):
            yield rule
        yield from served_rules(rule)


def picks_by(by: DevicePicks, prediction: Prediction) -> tuple[Pick, ...]:
    """The picks as the kernel `_rule_picks` finds them, in Python, without earlier picks of `JointlyAbove`."""
    confidences, entropies = prediction.confidences, prediction.entropies
    scores = {LEFT: lambda _: 0.0, ENTROPY: lambda index: entropies[index]}
    ordered = sorted(range(len(confidences)), key=scores.get(by.by, lambda index: -confidences[index]))
    count, product, spent, largest = by.min_count, 1.0, 0.0, 0.0
    for number, index in enumerate(ordered):
        if by.by == JOINTLY:
            product *= confidences[index]
            is_within = number == count and product > by.bound
        else:
            spent, largest = spent + min(entropies[index], largest), max(entropies[index], largest)
            is_within = number == count and spent <= by.bound < inf
        count += is_within
    return prediction.picked(
        index for rank, index in enumerate(ordered) if rank < count or confidences[index] > by.threshold
    )


def device_rules() -> st.SearchStrategy[Rule]:
    """The rules that say what the device gets."""
    rules = [rule for rule in served_rules() if rule.device_picks is not Rule.device_picks]
    return st.one_of([EXAMPLES[rule] for rule in rules])


class FirstHalf(TopConfidence):
    """The leftmost half of the masked positions. It inherits what the device gets of another rule."""

    __slots__ = ()

    def __call__(self, prediction: Prediction) -> tuple[Pick, ...]:
        return prediction.picked(range((len(prediction.positions) + 1) // 2))


class Halving(RuleMode, frozen=True):
    """A mode that consists of `FirstHalf`."""

    name: ClassVar[str] = "halving"

    @property
    def rule(self) -> Rule:
        return FirstHalf()
