"""Whether the running requests take turns in two halves: one half computes while the other half's policies run.

A step of all takes a forward T(n) and the host's time H(n). With two halves both take half of the host's time, hidden
behind the other half's forward: 2 max(T(n / 2), H(n) / 2). Where a forward mostly reads weights, T(n / 2) is T(n), and
halves cost more than they hide. So `auto` compares the two by the measured times. On a CPU nothing is hidden, since the
forward and the host use the same cores.
"""

from __future__ import annotations

from service.engine.config import Overlapping
from service.engine.drafting.pricing import Pricing

#: weight of a step in the running mean, and what halves must gain to be taken
_FRESH, _GAIN = 1 / 16, 0.97
#: so many requests are never divided
_FEW = 8


class Overlap:
    """Chooses the number of turns under way. `asynchronous`: whether the device computes while the host goes on."""

    def __init__(self, asked: Overlapping, pricing: Pricing, *, asynchronous: bool) -> None:
        self._asked, self._pricing, self._asynchronous = asked, pricing, asynchronous
        self._host = 0.0

    def turns(self, running: int) -> int:
        """1 or 2, for so many running requests."""
        if self._asked == "off" or running < 2:
            return 1
        if self._asked == "on":
            return 2
        return 2 if self._asynchronous and running > _FEW and self._pays(running) else 1

    def note(self, seconds: float, requests: int) -> None:
        """Counts the host's time for a turn of so many requests."""
        if requests:
            self._host += _FRESH * (seconds / requests - self._host)

    def _pays(self, running: int) -> bool:
        half = -(-running // 2)
        host, forwards = self._host, self._pricing.forwards_of
        return 2 * max(forwards(half), host * half) < _GAIN * (forwards(running) + host * running)
