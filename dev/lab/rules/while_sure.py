"""`direct` that stops where MRP is not sure, and `remask` from left to right. Both are ours.

Published (MRP paper, arXiv 2605.18817) are a fixed number of picks, the surest first, and a threshold in any order.
`direct_in_order.py` has the other half: `direct` by the rule of `sequential`.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import takewhile
from typing import Annotated, ClassVar

from dev.lab.rules.method import Method
from service.decode.block import Pick
from service.decode.canvas import Canvas
from service.decode.knobs import ENTROPY_BOUND, THRESHOLD, Knob
from service.decode.mode import DecodingMode
from service.decode.policy import Decoding, Evaluate, Prediction, Refine
from service.decode.rules import ConfidenceAbove, LeftToRight, Rule, TopConfidence

_STEPS = Knob(int, "MRP forwards for one of the backbone", least=0, in_block=True)


def _then_mrp(canvas: Canvas, rule: Rule, steps: int, sure: Callable[[Prediction], tuple[Pick, ...]]) -> Decoding:
    """`rule` picks from each reading of the backbone. Then `sure` picks from MRP's, until it finds nothing.

    `steps`: the most readings of MRP for one of the backbone.
    """
    while not canvas.block.complete:
        (reading,) = yield Evaluate((canvas.block,))
        canvas.reveal("denoise", canvas.choose(rule, reading, canvas.block))
        for _ in range(steps):
            if canvas.ends(canvas.block):
                break
            (reading,) = yield Refine(reading, canvas.block)
            if not (picks := sure(reading)):
                break
            canvas.reveal("mrp", picks)


class DirectWhileSure(DecodingMode, frozen=True):
    """`direct` that goes on with MRP's picks only while they are surer than `threshold`, at most `mrp_steps` times."""

    mode: ClassVar[str] = "direct-while-sure"
    mrp_steps: Annotated[int, _STEPS] = 4
    threshold: Annotated[float, THRESHOLD] = 0.9
    left: Annotated[int, Knob(int, "1: from left to right", least=0, most=1)] = 0

    @property
    def needs_mrp(self) -> bool:
        """Always."""
        return True

    @property
    def rule(self) -> Rule:
        """One position: the surest, or the leftmost."""
        return LeftToRight(1) if self.left else TopConfidence(1)

    def decode(self, canvas: Canvas) -> Decoding:
        """As `direct`."""

        def sure(reading: Prediction) -> tuple[Pick, ...]:
            picks = canvas.choose(self.rule, reading, canvas.block)
            return tuple(pick for pick in picks if pick.confidence > self.threshold)

        return _then_mrp(canvas, self.rule, self.mrp_steps, sure)


class SureInOrder(DecodingMode, frozen=True):
    """`sequential` with a bound; then MRP adds the leading picks surer than `threshold`, at most `mrp_steps` times.

    Unlike a forward of the backbone, one of MRP may add nothing: it never has to guess.
    """

    mode: ClassVar[str] = "sure-in-order"
    mrp_steps: Annotated[int, _STEPS] = 1
    threshold: Annotated[float, THRESHOLD] = 0.9
    entropy_bound: Annotated[float, ENTROPY_BOUND] = 0.1

    @property
    def needs_mrp(self) -> bool:
        """Always."""
        return True

    @property
    def rule(self) -> Rule:
        """The backbone's."""
        return LeftToRight(1, self.entropy_bound)

    def decode(self, canvas: Canvas) -> Decoding:
        """As `direct`."""

        def sure(reading: Prediction) -> tuple[Pick, ...]:
            return tuple(takewhile(lambda pick: pick.confidence > self.threshold, reading.picks))

        return _then_mrp(canvas, self.rule, self.mrp_steps, sure)


class HoldBack(DecodingMode, frozen=True):
    """`remask` turned round: what is doubtful stays masked, and MRP decides about it with the sure tokens in place.

    The backbone reveals above `threshold`, at least one. MRP then reveals above `mrp_threshold`, perhaps none, at most
    `mrp_steps` times. So MRP judges masked positions only, beside tokens of which it may be sure.
    """

    mode: ClassVar[str] = "hold-back"
    threshold: Annotated[float, THRESHOLD] = 0.9
    mrp_threshold: Annotated[float, THRESHOLD] = 0.9
    mrp_steps: Annotated[int, _STEPS] = 1

    @property
    def needs_mrp(self) -> bool:
        """Always."""
        return True

    @property
    def rule(self) -> Rule:
        """The positions above the threshold."""
        return ConfidenceAbove(self.threshold)

    def decode(self, canvas: Canvas) -> Decoding:
        """As `direct`."""

        def sure(reading: Prediction) -> tuple[Pick, ...]:
            return tuple(pick for pick in reading.picks if pick.confidence > self.mrp_threshold)

        return _then_mrp(canvas, self.rule, self.mrp_steps, sure)


class RemaskInOrder(DecodingMode, frozen=True):
    """`sequential` with a loose bound; then MRP judges, and all from the first doubtful token on is masked again."""

    mode: ClassVar[str] = "remask-in-order"
    entropy_bound: Annotated[float, ENTROPY_BOUND] = 1.0
    doubt: Annotated[float, THRESHOLD] = 0.3

    @property
    def needs_mrp(self) -> bool:
        """Always."""
        return True

    @property
    def rule(self) -> Rule:
        """From left to right."""
        return LeftToRight(1, self.entropy_bound)

    def decode(self, canvas: Canvas) -> Decoding:
        """As `remask`."""
        while not canvas.block.complete:
            (reading,) = yield Evaluate((canvas.block,))
            fresh = canvas.choose(self.rule, reading, canvas.block)
            canvas.reveal("denoise", fresh)
            if len(fresh) == 1:
                continue
            (corrected,) = yield Refine(reading, canvas.block, rescore=tuple(pick.position for pick in fresh))
            bad = [pick.position for pick in corrected.rescored[1:] if pick.confidence < self.doubt]
            if bad:
                canvas.remask("mrp", tuple(pick.position for pick in fresh if pick.position >= bad[0]))


METHOD = Method(
    "direct while sure",
    "ours, of arXiv 2605.18817",
    "MRP's picks while they are surer than a threshold; `remask` from left to right",
    (
        *(DirectWhileSure(8, value) for value in (0.7, 0.9)),
        *(DirectWhileSure(8, value, 1) for value in (0.7, 0.9)),
        *(SureInOrder(steps, value) for steps in (1, 4) for value in (0.7, 0.9)),
        *(RemaskInOrder(value, 0.5) for value in (0.3, 1.0)),
    ),
)
