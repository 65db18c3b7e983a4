"""The rule of `sequential`: from left to right (`sequential` of SDAR's generate.py, which reveals a fixed number).

With a bound the run goes on as EB-Sampler's (arXiv 2505.24857) would, but in the order of the text: our own
combination.
"""

from __future__ import annotations

from dataclasses import dataclass

from service.decode.block import Pick
from service.decode.policy import Reading
from service.decode.rules.bounded import bounded


@dataclass(frozen=True, slots=True)
class Leftmost:
    """The `count` leftmost picks, and those that follow as long as `bound` allows; 0: none."""

    count: int = 1
    bound: float = 0.0

    @property
    def needs_entropy(self) -> bool:
        """Whether a reading must have entropies."""
        return self.bound > 0

    def __call__(self, reading: Reading) -> tuple[Pick, ...]:
        """What is revealed after the reading."""
        if not self.needs_entropy:
            return reading.picks[: self.count]
        return bounded(reading, reading.picks, self.bound, least=self.count)
