"""The modes that consist of a reveal rule only: `static`, `dynamic`, `sequential` and `entropy`."""

from typing import Annotated, ClassVar

from service.decode.knobs import ENTROPY_BOUND, THRESHOLD, TOKENS_PER_STEP
from service.decode.mode import RuleMode
from service.decode.rules import ConfidenceAbove, LeftToRight, LowestEntropy, Rule, TopConfidence


class Static(RuleMode, frozen=True):
    """Reveal the `tokens_per_step` most confident positions of every forward."""

    name: ClassVar[str] = "static"
    tokens_per_step: Annotated[int, TOKENS_PER_STEP] = 1

    @property
    def rule(self) -> Rule:
        return TopConfidence(self.tokens_per_step)


class Dynamic(RuleMode, frozen=True):
    """Reveal every position with confidence > `threshold`; if none, the most confident."""

    name: ClassVar[str] = "dynamic"
    threshold: Annotated[float, THRESHOLD] = 0.9

    @property
    def rule(self) -> Rule:
        return ConfidenceAbove(self.threshold)


class Sequential(RuleMode, frozen=True):
    """Reveal the `tokens_per_step` leftmost positions of every forward, and more of them as `entropy_bound` allows."""

    name: ClassVar[str] = "sequential"
    tokens_per_step: Annotated[int, TOKENS_PER_STEP] = 1
    entropy_bound: Annotated[float, ENTROPY_BOUND] = 0.0

    @property
    def rule(self) -> Rule:
        return LeftToRight(self.tokens_per_step, self.entropy_bound)


class Entropy(RuleMode, frozen=True):
    """Reveal the positions of lowest entropy, as many as `entropy_bound` allows, at least one."""

    name: ClassVar[str] = "entropy"
    entropy_bound: Annotated[float, ENTROPY_BOUND] = 0.1

    @property
    def rule(self) -> Rule:
        return LowestEntropy(self.entropy_bound)
