"""LocalLeap (arXiv 2510.07081): near a sure position a lower confidence is enough.

`get_transfer_index` of a copy of its code. Anchors are masked positions whose confidence reaches `threshold`. A
position at most `radius` from an anchor is revealed from `relaxed` on, any other from `threshold` on.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from dev.lab.rules.method import COUNT, NUMBER, Choose, Method, Reveal
from service.decode.block import Block, Pick
from service.decode.policy import Prediction


class LocalLeap(Reveal, frozen=True):
    """The most confident position, and all that reach the threshold of their place."""

    mode: ClassVar[str] = "local-leap"
    threshold: Annotated[float, NUMBER] = 0.9
    relaxed: Annotated[float, NUMBER] = 0.75
    radius: Annotated[int, COUNT] = 4

    def begin(self, block: Block) -> Choose:  # noqa: ARG002 - nothing is remembered
        """Each reading by itself."""
        return self._choose

    def _choose(self, reading: Prediction) -> tuple[Pick, ...]:
        anchors = [pick.position for pick in reading.picks if pick.confidence >= self.threshold]
        (surest,) = reading.most_confident()

        def reaches(pick: Pick) -> bool:
            near = any(abs(pick.position - anchor) <= self.radius for anchor in anchors)
            return pick.confidence >= (self.relaxed if near else self.threshold)

        return tuple(pick for pick in reading.picks if pick == surest or reaches(pick))


METHOD = Method(
    "LocalLeap",
    "arXiv 2510.07081",
    "whole",
    (LocalLeap(), LocalLeap(0.9, 0.5, 1)),
    (LocalLeap(0.9, 0.5), LocalLeap(0.7, 0.5, 2)),
)
