"""ETE, explore-then-exploit (arXiv 2511.21103): its part within a block.

As described in the paper's abstract: tokens of high confidence are revealed together, and positions of high
uncertainty are revealed on purpose, since they tell most about the others. No reference code was found. Here a forward
that has no confident position reveals the most uncertain one (by entropy). `explore` of these are revealed beside the
confident ones. Decoding across blocks is not built: block-causal SDAR reads no block before the one before is final.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from dev.lab.rules.method import COUNT, NUMBER, Choose, Method, Reveal
from service.decode.block import Block, Pick
from service.decode.policy import Prediction
from service.decode.rules import LowestEntropy, Rule


class Explore(Reveal, frozen=True):
    """All above `threshold` and the `explore` most uncertain positions; at least the most uncertain."""

    mode: ClassVar[str] = "ete"
    threshold: Annotated[float, NUMBER] = 0.9
    explore: Annotated[int, COUNT] = 0

    @property
    def rule(self) -> Rule:
        """What the engine asks for: entropies."""
        return LowestEntropy(0.0)

    def begin(self, block: Block) -> Choose:  # noqa: ARG002 - nothing is remembered
        """Each reading by itself."""
        return self._choose

    def _choose(self, reading: Prediction) -> tuple[Pick, ...]:
        entropies = dict(zip(reading.positions, reading.entropies, strict=True))
        confident = [pick for pick in reading.picks if pick.confidence > self.threshold]
        uncertain = sorted(
            (pick for pick in reading.picks if pick not in confident), key=lambda pick: -entropies[pick.position]
        )
        explored = uncertain[: self.explore if confident else max(1, self.explore)]
        return (*confident, *explored)


METHOD = Method(
    "ETE, in a block",
    "arXiv 2511.21103",
    "from the abstract: exploit above a threshold, else explore the most uncertain",
    (Explore(), Explore(0.9, 1)),
    (Explore(0.7), Explore(0.5)),
)
