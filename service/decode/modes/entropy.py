"""`entropy`: reveals as many positions of lowest entropy as a bound allows (EB-Sampler, arXiv 2505.24857)."""

from typing import Annotated, ClassVar

from service.decode.knobs import ENTROPY_BOUND
from service.decode.mode import RuleMode
from service.decode.rules import LowestEntropy, Rule


class Entropy(RuleMode, frozen=True):
    """Reveal the positions of lowest entropy, as many as `entropy_bound` allows, at least one."""

    mode: ClassVar[str] = "entropy"
    entropy_bound: Annotated[float, ENTROPY_BOUND] = 0.1

    @property
    def rule(self) -> Rule:
        """The positions of lowest entropy."""
        return LowestEntropy(self.entropy_bound)
