"""Prophet (arXiv 2508.19982) and SchED (arXiv 2512.02892): the rest is committed once the two best logits are apart.

`generate_earlyexit.py` of pixeli99/Prophet, `dream_sampling/sched.py` of amr-mohamedd/SchED. Both decode with one
token a step and watch the mean gap between the two best logits over the answer's region. Once it reaches a threshold
that falls with the progress, all that is masked is revealed at once. Prophet's threshold falls in three steps, SchED's
along a curve. Here the region is the masked part of the block, the progress is the share of it that is revealed, and
what decodes until then is a knob.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Annotated, ClassVar

from dev.lab.rules.gaps import mean_logit_gap
from dev.lab.rules.method import NUMBER, Choose, Method, Reveal
from service.decode.block import Block, Pick
from service.decode.knobs import Knob
from service.decode.policy import Prediction
from service.decode.rules import LeftToRight, Rule, TopConfidence

#: what decodes until the commitment
BASES: Mapping[str, Rule] = {"static": TopConfidence(1), "sequential": LeftToRight(1, 0.1)}
BASE = Knob(str, "what decodes until the commitment", choices=tuple(BASES))


class Committing(Reveal, frozen=True):
    """Decodes by `base` until the mean gap reaches the threshold of the progress."""

    likeliest: ClassVar[int] = 2

    def threshold(self, progress: float) -> float:
        """At a progress from 0 to 1, in logits."""
        raise NotImplementedError

    @property
    def rule(self) -> Rule:
        """What decodes until then."""
        return BASES[self.base]

    def begin(self, block: Block) -> Choose:
        """The progress is counted from this state of the block on."""
        masked = len(block.masked)

        def choose(reading: Prediction) -> tuple[Pick, ...]:
            progress = 1 - len(reading.picks) / masked
            surely = mean_logit_gap(reading.picks) >= self.threshold(progress)
            return reading.picks if surely else self.rule(reading)

        return choose


class Prophet(Committing, frozen=True):
    """A threshold in three steps."""

    mode: ClassVar[str] = "prophet"
    early: Annotated[float, NUMBER] = 7.5
    middle: Annotated[float, NUMBER] = 5.0
    late: Annotated[float, NUMBER] = 2.5
    base: Annotated[str, BASE] = "static"

    def threshold(self, progress: float) -> float:
        """Thirds, as published."""
        if progress < 0.33:
            return self.early
        return self.middle if progress < 0.67 else self.late


#: how far a threshold has fallen at a progress, both from 0 to 1
_CURVES: Mapping[str, Callable[[float], float]] = {
    "linear": lambda progress: progress,
    "cosine": lambda progress: (1 - math.cos(math.pi * progress)) / 2,
    "exponential": lambda progress: 1 - math.exp(-2 * progress),
}
_CURVE = Knob(str, "how the threshold falls", choices=tuple(_CURVES))


class SchED(Committing, frozen=True):
    """A threshold along a curve."""

    mode: ClassVar[str] = "sched"
    high: Annotated[float, NUMBER] = 7.5
    low: Annotated[float, NUMBER] = 2.5
    curve: Annotated[str, _CURVE] = "cosine"
    base: Annotated[str, BASE] = "static"

    def threshold(self, progress: float) -> float:
        """From `high` to `low`."""
        return self.high + (self.low - self.high) * _CURVES[self.curve](progress)


PROPHET = Method(
    "Prophet",
    "arXiv 2508.19982",
    "the commitment, a block at a time",
    (Prophet(), Prophet(15, 10, 5), Prophet(15, 10, 5, "sequential")),
    (Prophet(20, 15, 10), Prophet(20, 15, 10, "sequential")),
)

SCHED = Method(
    "SchED",
    "arXiv 2512.02892",
    "the commitment, a block at a time",
    (SchED(), SchED(15, 5, "linear", "sequential")),
    (SchED(15, 5), SchED(15, 5, "exponential")),
)
