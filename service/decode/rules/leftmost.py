"""The rule of `sequential`: from left to right (`sequential` of SDAR's generate.py, which reveals a fixed number).

With a bound, further positions are revealed as in EB-Sampler (arXiv 2505.24857), but in the order of the text. This
combination is our own.
"""

from __future__ import annotations

from dataclasses import dataclass

from service.decode.block import Pick
from service.decode.policy import Prediction
from service.decode.rules.bounded import bounded


@dataclass(frozen=True, slots=True)
class LeftToRight:
    """The `count` leftmost picks, and further ones as long as `bound` (nats) allows. With bound 0 there are none."""

    count: int = 1
    bound: float = 0.0

    @property
    def needs_entropy(self) -> bool:
        """Whether a reading must have entropies."""
        return self.bound > 0

    @property
    def in_order(self) -> LeftToRight:
        """Itself."""
        return self

    def __call__(self, reading: Prediction) -> tuple[Pick, ...]:
        """The picks to reveal after the reading."""
        places = range(len(reading.positions))
        if not self.needs_entropy:
            return reading.picked(places[: self.count])
        return bounded(reading, places, self.bound, least=self.count)
