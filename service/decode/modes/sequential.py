"""`sequential`: from left to right (`sequential` of SDAR's generate.py), with a bound as EB-Sampler's."""

from dataclasses import dataclass
from typing import ClassVar

from service.decode.knobs import ENTROPY_BOUND, TOKENS_PER_STEP, knob
from service.decode.params import RuleParams
from service.decode.rules import Leftmost, Rule


@dataclass(frozen=True, slots=True)
class Sequential(RuleParams):
    """Reveal the `tokens_per_step` leftmost positions of every forward, and more of them as `entropy_bound` allows."""

    mode: ClassVar[str] = "sequential"
    tokens_per_step: int = knob(TOKENS_PER_STEP, 1)
    entropy_bound: float = knob(ENTROPY_BOUND, 0.0)

    @property
    def rule(self) -> Rule:
        """The leftmost positions."""
        return Leftmost(self.tokens_per_step, self.entropy_bound)
