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
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from loadtest.driver import Summary, drive, summary
from loadtest.generator.rows import Level, Request, Row
from loadtest.generator.workload import ALL_MODES
from loadtest.harness import Running, memory, options, report, say, service

_EVERY_S, _WARM_S = 5.0, 30.0
_USERS = ("StreamUser", "GenerateUser", "ChatStreamUser")

#: the MiB of each of the service's processes at one time
Memory = Mapping[str, float]


async def watch(running: Running, samples: list[Memory]) -> None:
    """Samples the memory every few seconds, and prints it every minute."""
    began = time.monotonic()
    while True:
        samples.append(memory(running))
        if len(samples) % 12 == 0:
            sizes = ", ".join(f"{name} {mib:.0f}" for name, mib in samples[-1].items())
            say(f"  MiB after {time.monotonic() - began:.0f} s: {sizes}")
        await asyncio.sleep(_EVERY_S)


def growth(samples: Sequence[Memory]) -> dict[str, float]:
    """The growth of each process from the second quarter's median to the last's, as a share.

    Only processes that lived all the time count.
    """
    quarter = len(samples) // 4
    early, late = samples[quarter : 2 * quarter], samples[-quarter:]
    names = set.intersection(*(set(mib) for mib in [*early, *late])) if quarter else set()
    return {
        name: statistics.median(mib[name] for mib in late) / statistics.median(mib[name] for mib in early) - 1
        for name in sorted(names)
    }


def drift(early: Summary, late: Summary) -> dict[str, float]:
    measures = ("first_block_p50_ms", "gap_p50_ms", "total_p50_ms", "tokens_per_s")
    pairs = {name: (getattr(early, name), getattr(late, name)) for name in measures}
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
    load = ("--modes", ALL_MODES, "--workload-seed", str(arguments.seed))
    load += ("--levels", f"{60 * arguments.minutes:g}:{arguments.users}")
    samples: list[Memory] = []
    async with service(arguments) as running:
        watching = asyncio.create_task(watch(running, samples))
        rows = await drive(running.url, arguments.out / "soak", *_USERS, *load)
        watching.cancel()
    return conclude(arguments, rows, samples)


def conclude(arguments: argparse.Namespace, rows: Sequence[Row], samples: Sequence[Memory]) -> int:
    requests = [row for row in rows if isinstance(row, Request)]
    [(since, until)] = [row.span(_WARM_S) for row in rows if isinstance(row, Level)]
    quarter, whole = (until - since) / 4, summary(rows, since, until)
    changes = drift(summary(rows, since, since + quarter), summary(rows, until - quarter, until))
    grown = growth(samples)
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
        "memory_mib": {name: round(value) for name, value in samples[-1].items()},
        "memory_growth": {name: round(value, 4) for name, value in grown.items()},
    }
    broken = [f"{failed} requests failed"] if failed else []
    broken += [f"{name} changed by {value:+.0%}" for name, value in changes.items() if abs(value) > arguments.drift]
    broken += [f"{name} grew by {value:.1%}" for name, value in grown.items() if value > arguments.grow]
    broken += [] if grown else ["no process was seen throughout"]
    return report("soak", result, broken)


if __name__ == "__main__":
    sys.exit(asyncio.run(run(parse())))
