"""`dynamic`: reveals every token above a confidence (`low_confidence_dynamic` of SDAR's generate.py)."""

from typing import Annotated, ClassVar

from service.decode.knobs import THRESHOLD
from service.decode.mode import RuleMode
from service.decode.rules import ConfidenceAbove, Rule


class Dynamic(RuleMode, frozen=True):
    """Reveal every position with confidence > `threshold`; if none, the most confident."""

    mode: ClassVar[str] = "dynamic"
    threshold: Annotated[float, THRESHOLD] = 0.9

    @property
    def rule(self) -> Rule:
        """The positions above the threshold."""
        return ConfidenceAbove(self.threshold)
