"""All modes but `speculative`. Four consist of a reveal rule only: `static`, `dynamic`, `sequential`, `entropy`.

In `direct` and `remask` MRP decides the output without verification (MRP paper).
"""

from math import prod
from operator import attrgetter
from typing import Annotated, ClassVar

from service.decode.canvas import Canvas
from service.decode.knobs import ENTROPY_BOUND, THRESHOLD, TOKENS_PER_STEP, Knob
from service.decode.mode import DecodingMode, Pace, RuleMode
from service.decode.policy import Decoding, Evaluate, Refine
from service.decode.rules import ConfidenceAbove, JointlyAbove, LeftToRight, LowestEntropy, Rule, TopConfidence

_MRP_STEPS = Knob(int, "MRP picks per backbone forward; default: the checkpoint's", minimum=1, in_block=True)


class Static(RuleMode, frozen=True):
    """Reveal the `tokens_per_step` most confident positions of every forward."""

    name: ClassVar[str] = "static"
    tokens_per_step: Annotated[int, TOKENS_PER_STEP] = 1

    @property
    def rule(self) -> Rule:
        return TopConfidence(self.tokens_per_step)


class Dynamic(RuleMode, frozen=True):
    """Reveal every position with confidence > `threshold`; if none, the most confident."""

    name: ClassVar[str] = "dynamic"
    threshold: Annotated[float, THRESHOLD] = 0.9

    @property
    def rule(self) -> Rule:
        return ConfidenceAbove(self.threshold)


class Sequential(RuleMode, frozen=True):
    """Reveal the `tokens_per_step` leftmost positions of every forward, and more of them as `entropy_bound` allows."""

    name: ClassVar[str] = "sequential"
    tokens_per_step: Annotated[int, TOKENS_PER_STEP] = 1
    entropy_bound: Annotated[float, ENTROPY_BOUND] = 0.0

    @property
    def rule(self) -> Rule:
        return LeftToRight(self.tokens_per_step, self.entropy_bound)


class Entropy(RuleMode, frozen=True):
    """Reveal the positions of lowest entropy, as many as `entropy_bound` allows, at least one."""

    name: ClassVar[str] = "entropy"
    entropy_bound: Annotated[float, ENTROPY_BOUND] = 0.1

    @property
    def rule(self) -> Rule:
        return LowestEntropy(self.entropy_bound)


class Direct(DecodingMode, frozen=True):
    """One pick of the backbone, then `mrp_steps` unverified picks of MRP.

    With a `threshold` a forward of MRP reveals its most confident picks, as long as the product of the confidences of
    all its picks since the backbone's forward is above the threshold. If it reveals none, the backbone is next.
    """

    name: ClassVar[str] = "direct"
    served_without_mrp: ClassVar[bool] = False
    mrp_steps: Annotated[int, _MRP_STEPS] = 1
    threshold: Annotated[float | None, THRESHOLD] = None

    @property
    def rule(self) -> Rule:
        return TopConfidence(1)

    @property
    def pace(self) -> Pace:
        return Pace(1, self.mrp_steps, None if self.threshold is None else JointlyAbove(self.threshold))

    def decode(self, canvas: Canvas) -> Decoding:
        """Up to 1 + `mrp_steps` tokens per backbone forward; with a threshold as many as are sure."""
        rule, threshold = canvas.rule(self.rule), self.threshold
        while not canvas.block.complete:
            (prediction,) = yield Evaluate((canvas.block,))
            canvas.reveal("denoise", canvas.choose(rule, prediction, canvas.block))
            sure = 1.0  # the probability that all of MRP's picks since the backbone's are right
            for _ in range(self.mrp_steps):
                if canvas.block.complete:
                    break
                (prediction,) = yield Refine(prediction, canvas.block)
                gate = rule if threshold is None else canvas.rule(JointlyAbove(threshold / sure))
                if not (picks := canvas.choose(gate, prediction, canvas.block)):
                    break  # the answer has ended, or MRP is not sure
                canvas.reveal("mrp", picks)
                if threshold is not None:
                    sure *= prod([pick.confidence for pick in picks])


class Remask(DecodingMode, frozen=True):
    """Dynamic, then MRP masks new tokens again if their corrected probability is < `threshold`."""

    name: ClassVar[str] = "remask"
    served_without_mrp: ClassVar[bool] = False
    threshold: Annotated[float, THRESHOLD] = 0.9

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
