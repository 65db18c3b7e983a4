"""`remask`: MRP checks the tokens that `dynamic` reveals and may mask them again (MRP paper, remasking)."""

from operator import attrgetter
from typing import Annotated, ClassVar

from service.decode.canvas import Canvas
from service.decode.knobs import THRESHOLD
from service.decode.mode import DecodingMode
from service.decode.policy import Decoding, Evaluate, Refine
from service.decode.rules import ConfidenceAbove, Rule


class Remask(DecodingMode, frozen=True):
    """Dynamic, then MRP masks new tokens again if their corrected probability is < `threshold`."""

    mode: ClassVar[str] = "remask"
    served_without_mrp: ClassVar[bool] = False
    threshold: Annotated[float, THRESHOLD] = 0.9

    @property
    def needs_mrp(self) -> bool:
        """Always."""
        return True

    @property
    def rule(self) -> Rule:
        """The positions above the threshold."""
        return ConfidenceAbove(self.threshold)

    def decode(self, canvas: Canvas) -> Decoding:
        """Only tokens of the current step can be masked again, and never all of them."""
        rule = canvas.rule(self.rule)
        while not canvas.block.complete:
            (prediction,) = yield Evaluate((canvas.block,))
            fresh = canvas.choose(rule, prediction, canvas.block)
            canvas.reveal("denoise", fresh)
            if len(fresh) == 1:
                continue
            (corrected,) = yield Refine(prediction, canvas.block, rescore=tuple(pick.position for pick in fresh))
            keep = corrected.rescored[0] if canvas.grammar else max(corrected.rescored, key=attrgetter("confidence"))
            doubtful = [pick for pick in corrected.rescored if pick.confidence < self.threshold]
            if remasked := tuple(pick.position for pick in doubtful if pick.position != keep.position):
                canvas.remask("mrp", remasked)
