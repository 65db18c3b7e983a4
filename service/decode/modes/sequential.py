"""`sequential`: reveals from left to right (`sequential` of SDAR's generate.py), optionally with EB-Sampler's bound."""

from typing import Annotated, ClassVar

from service.decode.knobs import ENTROPY_BOUND, TOKENS_PER_STEP
from service.decode.mode import RuleMode
from service.decode.rules import LeftToRight, Rule


class Sequential(RuleMode, frozen=True):
    """Reveal the `tokens_per_step` leftmost positions of every forward, and more of them as `entropy_bound` allows."""

    mode: ClassVar[str] = "sequential"
    tokens_per_step: Annotated[int, TOKENS_PER_STEP] = 1
    entropy_bound: Annotated[float, ENTROPY_BOUND] = 0.0

    @property
    def rule(self) -> Rule:
        """The leftmost positions."""
        return LeftToRight(self.tokens_per_step, self.entropy_bound)
