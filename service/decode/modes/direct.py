"""`direct`: one backbone pick, then MRP picks without verification (MRP paper, direct decoding)."""

from typing import Annotated, ClassVar

from service.decode.canvas import Canvas
from service.decode.knobs import Knob
from service.decode.mode import DecodingMode
from service.decode.policy import Decoding, Evaluate, Refine
from service.decode.rules import Rule, TopConfidence

_MRP_STEPS = Knob(int, "MRP picks per backbone forward; default: the checkpoint's", least=1, in_block=True)


class Direct(DecodingMode, frozen=True):
    """One pick of the backbone, then `mrp_steps` unverified picks of MRP."""

    mode: ClassVar[str] = "direct"
    served_without_mrp: ClassVar[bool] = False
    mrp_steps: Annotated[int, _MRP_STEPS] = 1

    @property
    def needs_mrp(self) -> bool:
        """Always."""
        return True

    @property
    def rule(self) -> Rule:
        """The most confident position."""
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
