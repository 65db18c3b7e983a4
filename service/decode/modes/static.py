"""`static`: a fixed number of tokens a forward (`low_confidence_static` of SDAR's generate.py)."""

from dataclasses import dataclass
from typing import ClassVar

from service.decode.knobs import TOKENS_PER_STEP, knob
from service.decode.params import RuleParams
from service.decode.rules import MostConfident, Rule


@dataclass(frozen=True, slots=True)
class Static(RuleParams):
    """Reveal the `tokens_per_step` most confident positions of every forward."""

    mode: ClassVar[str] = "static"
    tokens_per_step: int = knob(TOKENS_PER_STEP, 1)

    @property
    def rule(self) -> Rule:
        """The most confident positions."""
        return MostConfident(self.tokens_per_step)
