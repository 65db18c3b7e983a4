"""`static`: a fixed number of tokens a forward (`low_confidence_static` of SDAR's generate.py)."""

from typing import Annotated, ClassVar

from service.decode.knobs import TOKENS_PER_STEP
from service.decode.mode import RuleMode
from service.decode.rules import TopConfidence, Rule


class Static(RuleMode, frozen=True):
    """Reveal the `tokens_per_step` most confident positions of every forward."""

    mode: ClassVar[str] = "static"
    tokens_per_step: Annotated[int, TOKENS_PER_STEP] = 1

    @property
    def rule(self) -> Rule:
        """The most confident positions."""
        return TopConfidence(self.tokens_per_step)
