"""`dynamic`: every token above a confidence (`low_confidence_dynamic` of SDAR's generate.py)."""

from dataclasses import dataclass
from typing import ClassVar

from service.decode.knobs import THRESHOLD, knob
from service.decode.params import RuleParams
from service.decode.rules import Above, Rule


@dataclass(frozen=True, slots=True)
class Dynamic(RuleParams):
    """Reveal every position with confidence > `threshold`; if none, the most confident."""

    mode: ClassVar[str] = "dynamic"
    threshold: float = knob(THRESHOLD, 0.9)

    @property
    def rule(self) -> Rule:
        """The positions above the threshold."""
        return Above(self.threshold)
