"""The gap between the two likeliest tokens instead of the confidence.

Top-K probability margin (arXiv 2502.06768) orders positions by it. MARS (arXiv 2601.15498) asks it of a verifier's
reading. Here a position is revealed if its gap in probability is above `threshold`.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from dev.lab.rules.gaps import probability_gap
from dev.lab.rules.method import NUMBER, Choose, Method, Reveal
from dev.lab.rules.orders import ORDER, ORDERS
from service.decode.block import Block


class Margin(Reveal, frozen=True):
    """Every position whose gap is above `threshold`; if there is none, that with the widest."""

    mode: ClassVar[str] = "margin"
    likeliest: ClassVar[int] = 2
    threshold: Annotated[float, NUMBER] = 0.7
    order: Annotated[str, ORDER] = "any"

    def begin(self, block: Block) -> Choose:  # noqa: ARG002 - nothing is remembered
        """Each reading by itself."""
        order = ORDERS[self.order]
        return lambda reading: order(
            reading.picks, lambda pick: probability_gap(pick) > self.threshold, probability_gap
        )


METHOD = Method(
    "margin",
    "arXiv 2502.06768, 2601.15498",
    "a threshold on the gap; from left to right: ours",
    (Margin(0.5), Margin(0.9), Margin(0.3, "left-but-one"), Margin(0.5, "left-but-one")),
    (Margin(0.3), Margin(0.7), Margin(0.9, "left-but-one")),
)
