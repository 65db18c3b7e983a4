"""Requests that lose their KV pages by chance, whether or not pages are short, and get them back.

Their answers are the same. `test_preemption.py` tests which requests lose their pages where they are short.
"""

import random

import pytest

from service.engine import engine
from service.engine.scheduler import Scheduler, StepRows


class Disturbed(Scheduler):
    """A scheduler that preempts requests by chance. Class attributes, since the engine makes it.

    `share`: of the running requests in each step that begins in turns, this share. `preempted_total`: their number.
    """

    share = 0.0
    rng = random.Random()
    preempted_total = 0

    def plan(self, *, ahead: bool = False) -> StepRows:
        if ahead:  # at times as if pages were short, so that requests lose theirs in the next step
            return [] if self.rng.random() < 2 * self.share else super().plan(ahead=True)
        if self.share:
            for running in [running for running in self.running if running.grows]:
                if self.rng.random() < self.share:
                    self.preempt(running)
                    Disturbed.preempted_total += 1
            self._refused = None if self.rng.random() < 0.5 else self._refused
            self.resume()
        return super().plan()


def use_preemptions(monkeypatch: pytest.MonkeyPatch, share: float = 0.05, seed: int = 0) -> type[Disturbed]:
    """In engines that are made from now on, requests lose their pages by chance. Also the oldest one."""
    monkeypatch.setattr(engine, "Scheduler", Disturbed)
    monkeypatch.setattr(Disturbed, "share", share)
    monkeypatch.setattr(Disturbed, "rng", random.Random(seed))
    monkeypatch.setattr(Disturbed, "preempted_total", 0)
    return Disturbed
