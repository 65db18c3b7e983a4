"""The MRP paper's direct decoding (arXiv 2605.18817) with the rule of `sequential`: our own.

Published is one pick of the backbone, then one of MRP each step, the most confident each time. Here the backbone
reveals what `sequential` with a bound reveals: from left to right, as far as one guess goes. MRP then goes on from
there: by the same rule (`sure` 0), or only while its picks' confidence is above `sure`. They stay unverified.
"""

from __future__ import annotations

from itertools import takewhile
from typing import Annotated, ClassVar

from dev.lab.rules.method import COUNT, NUMBER, Method
from service.decode.block import Pick
from service.decode.canvas import Canvas
from service.decode.mode import DecodingMode
from service.decode.policy import Decoding, Evaluate, Prediction, Refine
from service.decode.rules import LeftToRight, Rule


class DirectInOrder(DecodingMode, frozen=True):
    """A forward of the backbone, then `mrp_steps` of MRP."""

    mode: ClassVar[str] = "direct-in-order"
    mrp_steps: Annotated[int, COUNT] = 1
    entropy_bound: Annotated[float, NUMBER] = 0.1
    sure: Annotated[float, NUMBER] = 0.0

    @property
    def needs_mrp(self) -> bool:
        """Always."""
        return True

    @property
    def rule(self) -> Rule:
        """The leftmost positions within the bound."""
        return LeftToRight(1, self.entropy_bound)

    def decode(self, canvas: Canvas) -> Decoding:
        """As `direct`."""
        while not canvas.block.complete:
            (reading,) = yield Evaluate((canvas.block,))
            canvas.reveal("denoise", self.rule(reading))
            for _ in range(self.mrp_steps):
                if canvas.block.complete:
                    break
                (reading,) = yield Refine(reading, canvas.block)
                if not (picks := self._continued(reading)):
                    break
                canvas.reveal("mrp", picks)

    def _continued(self, reading: Prediction) -> tuple[Pick, ...]:
        if not self.sure:
            return self.rule(reading)
        return tuple(takewhile(lambda pick: pick.confidence > self.sure, reading.picks))


METHOD = Method(
    "direct in order",
    "ours, of arXiv 2605.18817",
    "direct decoding by sequential's rule",
    (DirectInOrder(1), DirectInOrder(2, 0.1, 0.5), DirectInOrder(2, 0.1, 0.9)),
    (DirectInOrder(2, 0.0), DirectInOrder(2, 0.1, 0.99), DirectInOrder(4, 0.1, 0.9)),
)
