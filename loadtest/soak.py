"""`python -m loadtest.soak`: steady load of all modes for twenty minutes. No error, flat memory, no drift.

The time after the warm-up is divided into quarters. From the second quarter to the last, the memory of a process may
grow by a few per cent; the first quarter fills caches. Median times and throughput of the last quarter are compared
with those of the first. The service must be on this machine, since the memory of its processes is read.
"""

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
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


#: seconds since the epoch, and the MiB of each of the service's processes then
Memory = tuple[float, dict[str, float]]


def watch(running: Running, samples: list[Memory]) -> None:
    """Called about once a second. Samples the memory every few seconds, and prints it every minute."""
    now = time.time()
    if not samples or now - samples[-1][0] >= _EVERY_S:
        samples.append((now, memory(running)))
        if len(samples) % 12 == 0:
            say(f"  after {now - samples[0][0]:.0f} s: {sum(samples[-1][1].values()):.0f} MiB")


def growth(samples: Sequence[Memory]) -> dict[str, float]:
    """The growth of each process from the second quarter's median to the last's, as a share.

    Only processes that lived all the time count.
    """
    quarter = len(samples) // 4
    early, late = samples[quarter : 2 * quarter], samples[-quarter:]
    names = set.intersection(*(set(mib) for _, mib in [*early, *late])) if quarter else set()
    return {
        name: statistics.median(mib[name] for _, mib in late) / statistics.median(mib[name] for _, mib in early) - 1
        for name in sorted(names)
    }


def slices(run: Run, window: Window, requests: Sequence[Request], count: int) -> list[Point]:
    seconds = window.seconds / count
    parts = [
        replace(window, since=window.since + number * seconds, until=window.since + (number + 1) * seconds)
        for number in range(count)
    ]
    return [point(run, part, requests, Slo()) for part in parts]


def drift(quarters: Sequence[Point]) -> dict[str, float]:
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
        samples: list[Memory] = []
        record = await Driver(running.url, arguments.out).drive(planned, lambda: watch(running, samples))
    return conclude(arguments, record, samples)


def conclude(arguments: argparse.Namespace, record: Record, samples: Sequence[Memory]) -> int:
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
        "memory_mib": {name: round(value) for name, value in (samples[-1][1] if samples else {}).items()},
        "memory_growth": {name: round(value, 4) for name, value in grown.items()},
    }
    broken = [f"{failed} requests failed"] if failed else []
    broken += [f"{name} changed by {value:+.0%}" for name, value in changes.items() if abs(value) > arguments.drift]
    broken += [f"{name} grew by {value:.1%}" for name, value in grown.items() if value > arguments.grow]
    broken += [] if grown else ["no process was seen throughout"]
    course = [(at - window.since, mib) for at, mib in samples]
    soak(slices(record.run, window, requests, _SLICES), window.seconds, course, arguments.out / "soak.png")
    return report("soak", result, broken)


if __name__ == "__main__":
    sys.exit(asyncio.run(run(parse())))
