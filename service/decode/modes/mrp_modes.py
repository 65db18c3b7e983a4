"""The modes whose output MRP decides without verification: `direct` and `remask` (MRP paper)."""

from operator import attrgetter
from typing import Annotated, ClassVar

from service.decode.canvas import Canvas
from service.decode.knobs import THRESHOLD, Knob
from service.decode.mode import DecodingMode
from service.decode.policy import Decoding, Evaluate, Refine
from service.decode.rules import ConfidenceAbove, Rule, TopConfidence

_STEPS = Knob(int, "MRP picks per backbone forward; default: the checkpoint's", minimum=1, in_block=True)


class Direct(DecodingMode, frozen=True):
    """One pick of the backbone, then `mrp_steps` unverified picks of MRP."""

    name: ClassVar[str] = "direct"
    served_without_mrp: ClassVar[bool] = False
    mrp_steps: Annotated[int, _STEPS] = 1

    @property
    def needs_mrp(self) -> bool:
        return True

    @property
    def rule(self) -> Rule:
        return TopConfidence(1)

    def decode(self, canvas: Canvas) -> Decoding:
        """Up to 1 + `mrp_steps` tokens per backbone forward."""
        rule = canvas.rule(self.rule)
        while not canvas.block.complete:
            (prediction,) = yield Evaluate((canvas.block,))
            canvas.reveal("denoise", canvas.choose(rule, prediction, canvas.block))
            for _ in range(self.mrp_steps):
                if canvas.block.complete:
                    break
                (prediction,) = yield Refine(prediction, canvas.block)
                if not (picks := canvas.choose(rule, prediction, canvas.block)):
                    break  # the answer has ended
                canvas.reveal("mrp", picks)


class Remask(DecodingMode, frozen=True):
    """Dynamic, then MRP masks new tokens again if their corrected probability is < `threshold`."""

    name: ClassVar[str] = "remask"
    served_without_mrp: ClassVar[bool] = False
    threshold: Annotated[float, THRESHOLD] = 0.9

    @property
    def needs_mrp(self) -> bool:
        return True

    @property
    def rule(self) -> Rule:
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
