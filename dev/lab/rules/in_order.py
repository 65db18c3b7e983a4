"""From left to right with other bounds than EB-Sampler's entropies: our own, beside `sequential`'s `entropy_bound`."""

from __future__ import annotations

from typing import Annotated, ClassVar

from dev.lab.rules.method import NUMBER, Choose, Method, Reveal
from dev.lab.rules.orders import ORDER, ORDERS
from service.decode.block import Block, Pick
from service.decode.policy import Prediction


class Confident(Reveal, frozen=True):
    """As `dynamic`, in an order."""

    mode: ClassVar[str] = "confident"
    threshold: Annotated[float, NUMBER] = 0.9
    order: Annotated[str, ORDER] = "left-but-one"

    def begin(self, block: Block) -> Choose:  # noqa: ARG002 - nothing is remembered
        """Each reading by itself."""
        order = ORDERS[self.order]
        return lambda reading: order(
            reading.picks, lambda pick: pick.confidence > self.threshold, lambda pick: pick.confidence
        )


class Doubts(Reveal, frozen=True):
    """The leftmost positions whose doubts, 1 - confidence, less the largest, sum up to `bound` at most."""

    mode: ClassVar[str] = "doubts"
    bound: Annotated[float, NUMBER] = 0.1

    def begin(self, block: Block) -> Choose:  # noqa: ARG002 - nothing is remembered
        """Each reading by itself."""
        return self._choose

    def _choose(self, reading: Prediction) -> tuple[Pick, ...]:
        largest = others = 0.0
        for number, pick in enumerate(reading.picks):
            doubt = 1 - pick.confidence
            others, largest = others + min(doubt, largest), max(doubt, largest)
            if number and others > self.bound:
                return reading.picks[:number]
        return reading.picks


METHOD = Method(
    "bounds in order",
    "ours",
    "one guess a forward by confidence; the sum of doubts less the largest",
    (Confident(0.5), Confident(0.7), Doubts(0.3), Doubts(0.5)),
    (*(Confident(value) for value in (0.4, 0.6, 0.9)), *(Doubts(value) for value in (0.1, 0.4, 0.6))),
)
