"""`remask`: MRP checks the tokens that `dynamic` reveals and may mask them again (MRP paper, remasking)."""

from typing import Annotated, ClassVar

from service.decode.block import Pick
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
            (reading,) = yield Evaluate((canvas.block,))
            fresh = canvas.choose(rule, reading, canvas.block)
            canvas.reveal("denoise", fresh)
            if len(fresh) == 1:
                continue
            (corrected,) = yield Refine(reading, canvas.block, rescore=tuple(pick.position for pick in fresh))
            keep = corrected.rescored[0] if canvas.guide else max(corrected.rescored, key=lambda pick: pick.confidence)
            doubtful = _doubtful(corrected.rescored, self.threshold, keep.position)
            if doubtful:
                canvas.remask("mrp", doubtful)


def _doubtful(judged: tuple[Pick, ...], threshold: float, keep: int) -> tuple[int, ...]:
    return tuple(p.position for p in judged if p.confidence < threshold and p.position != keep)
