"""KLASS (arXiv 2511.05664): what is confident and has been stable is revealed.

`stable_confident_decode` of shkim0116/KLASS. A position is stable if the last `length` divergences between successive
readings of it, KL(now ‖ before), are all below `divergence`. Where no position is stable and confident, the most
confident is revealed. The divergence is taken here over the tokens that both readings list among their 16 likeliest,
all others as one: never more than the true one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, ClassVar

from dev.lab.rules.method import COUNT, NUMBER, Choose, Method, Reveal
from service.decode.block import Block, Pick
from service.decode.policy import Prediction

_LEAST = 1e-12


class Klass(Reveal, frozen=True):
    """Confidence above `threshold`, and `length` divergences below `divergence` (nats)."""

    mode: ClassVar[str] = "klass"
    likeliest: ClassVar[int] = 16
    threshold: Annotated[float, NUMBER] = 0.9
    divergence: Annotated[float, NUMBER] = 0.01
    length: Annotated[int, COUNT] = 2

    def begin(self, block: Block) -> Choose:  # noqa: ARG002 - nothing is known of it yet
        """Remembers the last reading of each position, and for how long it has been stable."""
        before: dict[int, Mapping[int, float]] = {}
        stable: dict[int, int] = {}

        def choose(reading: Prediction) -> tuple[Pick, ...]:
            for pick in reading.picks:
                now, place = dict(pick.logprobs.top), pick.position
                same = place in before and divergence(now, before[place]) < self.divergence
                stable[place] = stable.get(place, 0) + 1 if same else 0
                before[place] = now
            ready = [p for p in reading.picks if p.confidence > self.threshold and stable[p.position] >= self.length]
            return tuple(ready) or reading.most_confident()

        return choose


def divergence(now: Mapping[int, float], before: Mapping[int, float]) -> float:
    """KL(now ‖ before) in nats, of log-probabilities of some tokens: those in both, and all others as one."""
    common = now.keys() & before.keys()
    rest, former = (max(_LEAST, 1 - sum(math.exp(of[token]) for token in common)) for of in (now, before))
    known = sum(math.exp(now[token]) * (now[token] - before[token]) for token in common)
    return known + rest * math.log(rest / former)


METHOD = Method(
    "KLASS",
    "arXiv 2511.05664",
    "whole; the divergence over 16 tokens and the rest",
    (Klass(), Klass(0.6, 0.01, 1)),
    (Klass(0.6, 0.01, 2), Klass(0.3, 0.001, 1)),
)
