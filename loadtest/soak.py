"""`python -m loadtest.soak`: steady load of all modes for twenty minutes. No error, flat memory, no drift.

The time after the warm-up is divided into quarters. From the second quarter to the last, the memory of a process may
grow by a few per cent; the first quarter fills caches. Median times and throughput of the last quarter are compared
with those of the first. The service must be on this machine, since the memory of its processes is read.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from loadtest.generator.rows import Request
from loadtest.harness import Running, memory, options, report, say, service
from loadtest.report import scenario as scenarios
from loadtest.report.driver import Driver, Record
from loadtest.report.figures import soak
from loadtest.report.scenario import Run, Slo
from loadtest.report.summary import Point, Window, point, windows

_EVERY_S = 5.0
_SLICES = 40


@dataclass(frozen=True)
class Memory:
    """The MiB of each of the service's processes at one time."""

    at: float
    mib: dict[str, float]


class Watch:
    """Samples memory while the load runs, and prints the progress."""

    def __init__(self, running: Running, seconds: float) -> None:
        self._running, self._seconds = running, seconds
        self._began = time.time()
        self.samples: list[Memory] = []

    def sample(self) -> None:
        """Called about once a second. Samples the memory every few seconds."""
        now = time.time()
        if self.samples and now - self.samples[-1].at < _EVERY_S:
            return
        self.samples.append(Memory(now, memory(self._running)))
        if len(self.samples) % 12 == 0:
            total = sum(self.samples[-1].mib.values())
            say(f"  {now - self._began:.0f} of {self._seconds:.0f} s: {total:.0f} MiB")


def growth(samples: Sequence[Memory]) -> dict[str, float]:
    """The growth of each process from the second quarter's median to the last's, as a share.

    Only processes that lived all the time count.
    """
    quarter = len(samples) // 4
    early, late = samples[quarter : 2 * quarter], samples[-quarter:]
    names = set.intersection(*(set(memory.mib) for memory in [*early, *late])) if quarter else set()
    return {
        name: statistics.median(m.mib[name] for m in late) / statistics.median(m.mib[name] for m in early) - 1
        for name in sorted(names)
    }


def slices(run: Run, window: Window, requests: Sequence[Request], count: int) -> list[Point]:
    """The points of `count` equal parts of the window."""
    seconds = window.seconds / count
    parts = [
        replace(window, since=window.since + number * seconds, until=window.since + (number + 1) * seconds)
        for number in range(count)
    ]
    return [point(run, part, requests, Slo()) for part in parts]


def drift(quarters: Sequence[Point]) -> dict[str, float]:
    """The change of times and throughput from the first quarter to the last, as a share."""
    measures = ("first_block_p50_ms", "gap_p50_ms", "total_p50_ms", "tokens_per_s")
    pairs = {name: (getattr(quarters[0], name), getattr(quarters[-1], name)) for name in measures}
    return {name: last / first - 1 for name, (first, last) in pairs.items() if first and last}


def parse() -> argparse.Namespace:
    parser = options(__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--users", type=int, default=8)
    parser.add_argument("--grow", type=float, default=0.05, help="share by which memory may grow")
    parser.add_argument("--drift", type=float, default=0.25, help="share by which times or throughput may change")
    parser.add_argument("--out", type=Path, default=Path("loadtest-soak"))
    return parser.parse_args()


async def run(arguments: argparse.Namespace) -> int:
    arguments.out.mkdir(parents=True, exist_ok=True)
    [planned] = scenarios.read("soak").runs
    planned = replace(planned, levels=f"{60 * arguments.minutes:g}:{arguments.users}", workload_seed=arguments.seed)
    async with service(arguments) as running:
        watch = Watch(running, planned.profile.seconds)
        record = await Driver(running.url, arguments.out).drive(planned, watch.sample)
    return conclude(arguments, record, watch.samples)


def conclude(arguments: argparse.Namespace, record: Record, samples: Sequence[Memory]) -> int:
    """Checks the limits, prints the result and draws the picture."""
    requests = [row for row in record.rows if isinstance(row, Request)]
    [window] = windows(record.run, record.rows, warm_s=30.0)
    [whole] = slices(record.run, window, requests, 1)
    changes, grown = drift(slices(record.run, window, requests, 4)), growth(samples)
    failed = sum(not row.ok for row in requests)
    result: dict[str, Any] = {
        "minutes": arguments.minutes,
        "users": arguments.users,
        "requests": len(requests),
        "failed": failed,
        "tokens_per_s": round(whole.tokens_per_s),
        "first_block_p50_ms": whole.first_block_p50_ms,
        "first_block_p95_ms": whole.first_block_p95_ms,
        "drift": {name: round(value, 3) for name, value in changes.items()},
        "memory_mib": {name: round(value) for name, value in (samples[-1].mib if samples else {}).items()},
        "memory_growth": {name: round(value, 4) for name, value in grown.items()},
    }
    broken = [f"{failed} requests failed"] if failed else []
    broken += [f"{name} changed by {value:+.0%}" for name, value in changes.items() if abs(value) > arguments.drift]
    broken += [f"{name} grew by {value:.1%}" for name, value in grown.items() if value > arguments.grow]
    broken += [] if grown else ["no process was seen throughout"]
    course = [(sample.at - window.since, sample.mib) for sample in samples]
    soak(slices(record.run, window, requests, _SLICES), window.seconds, course, arguments.out / "soak.png")
    return report("soak", result, broken)


if __name__ == "__main__":
    sys.exit(asyncio.run(run(parse())))
