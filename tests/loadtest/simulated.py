"""Rows of a simulated service: one server of known capacity, in virtual time."""

import random

from loadtest.generator.arrivals import Profile, poisson
from loadtest.generator.rows import Level, Request
from loadtest.report.scenario import Run


def request(at=0.0, first=50.0, gap=20.0, blocks=3, **changes):
    """An answered request: its blocks come after `first` and then every `gap` milliseconds."""
    times = [first + number * gap for number in range(blocks)]
    values = {"at": at, "late_ms": 0.0, "route": "/generate (stream)", "mode": "static", "stage": None}
    values |= {"status": 200, "error": "", "finish": "stop", "first_block_ms": first}
    values |= {"total_ms": times[-1] if times else first, "blocks": [(time, 4) for time in times], "tokens": 4 * blocks}
    values |= {"prompt_tokens": 10, "cached_tokens": 0, "tokens_per_forward": 2.0}
    return Request(**values | changes)


def queue(run: Run, service_s: float, seed=1):
    """The rows of an open loop at a server that serves one after the other, each in `service_s`."""
    rows, free = [], 0.0
    began = 0.0
    for number, stage in enumerate(run.profile.stages):
        rows.append(Level(began, number, stage.first))
        began += stage.seconds
    for arrival in poisson(Profile.parse(run.levels), 1.0, random.Random(seed)):
        free = max(free, arrival.at) + service_s
        waited = (free - arrival.at) * 1000
        rows.append(request(arrival.at, first=waited, gap=1.0, stage=arrival.stage))
    return rows
