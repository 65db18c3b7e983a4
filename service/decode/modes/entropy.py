"""`entropy`: the positions of lowest entropy, as many as a bound allows (EB-Sampler, arXiv 2505.24857)."""

from dataclasses import dataclass
from typing import ClassVar

from service.decode.knobs import ENTROPY_BOUND, knob
from service.decode.params import RuleParams
from service.decode.rules import LowestEntropy, Rule


@dataclass(frozen=True, slots=True)
class Entropy(RuleParams):
    """Reveal the positions of lowest entropy, as many as `entropy_bound` allows, at least one."""

    mode: ClassVar[str] = "entropy"
    entropy_bound: float = knob(ENTROPY_BOUND, 0.1)

    @property
    def rule(self) -> Rule:
        """The positions of lowest entropy."""
        return LowestEntropy(self.entropy_bound)
