"""`python -m loadtest.capacity`: the highest rate of random arrivals at which a service meets its objective.

The objective limits p95 of the time to first block, p95 of the time between blocks, and the share of lost requests.
The rate is found by bisection, and confirmed by a longer run. Probes are random and machines are shared; `--repeats 3`
decides by majority. Each probe also has its goodput: answers per second, and their tokens, whose first block and every
further one came within the goal: the objective's limits, or `--good-first-block-ms` and `--good-gap-ms`.
"""

import argparse
import asyncio
import json
import math
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from loadtest.harness import options, say, service
from loadtest.report.driver import Driver
from loadtest.report.figures import capacity as draw
from loadtest.report.scenario import Run, Slo
from loadtest.report.summary import Point, points
from loadtest.run import line

_MOST_LOST = 0.01
_STEP = 1.3
_MOST_STEPS = 16
_WARM_S = 3.0


@dataclass(frozen=True)
class Limits:
    first_block_p95_ms: float
    gap_p95_ms: float

    def broken(self, point: Point) -> str:
        lost = point.failed + point.unfinished
        if lost > _MOST_LOST * point.requests:
            return f"{lost} of {point.requests} requests lost"
        for name in ("first_block_p95_ms", "gap_p95_ms"):
            if (getattr(point, name) or 0.0) > getattr(self, name):
                return f"{name} {getattr(point, name):.0f} > {getattr(self, name):g}"
        return "" if point.requests else "no requests"


async def highest(holds: Callable[[float], Awaitable[bool]], first: float, tolerance: float) -> float:
    """The highest rate for which `holds` is true, within `tolerance` (0.05: 5 %); 0 if there is none.

    Moves away from `first` until one rate holds and one does not, then bisects (geometrically).
    """
    low, high = 0.0, math.inf
    rate = first
    for _ in range(_MOST_STEPS):
        if await holds(rate):
            low = rate
        else:
            high = rate
        if high <= low * (1 + tolerance):
            break
        rate = low * _STEP if high == math.inf else high / _STEP if low == 0 else math.sqrt(low * high)
    return low


async def confirmed(holds: Callable[[float], Awaitable[bool]], rate: float, tolerance: float) -> float:
    for _ in range(_MOST_STEPS):
        if rate <= 0 or await holds(rate):
            return rate
        rate /= 1 + tolerance
    return 0.0


@dataclass
class Probe:
    """Runs rates and compares them with the limits. Keeps every point."""

    driver: Driver
    like: Run
    limits: Limits
    goal: Slo
    repeats: int
    tried: list[Point]

    async def run(self, rate: float, seconds: float) -> bool:
        held = 0
        for number in range(self.repeats):
            name = f"{self.like.name}-{len(self.tried)}"
            seed = self.like.workload_seed + number
            run = replace(self.like, name=name, levels=f"{seconds:g}:{rate:.4g}", loop="open", workload_seed=seed)
            point = await self._point(run)
            self.tried.append(point)
            why = self.limits.broken(point)
            held += not why
            say(f"{line(point)}: {why or 'holds'}")
        return held > self.repeats / 2

    async def most(self) -> float:
        """The requests per second of a closed loop, at which the search begins."""
        point = await self._point(replace(self.like, name=f"{self.like.name}-closed", levels="8:32"))
        say(line(point))
        return max(0.1, point.requests_per_s)

    async def _point(self, run: Run) -> Point:
        record = await self.driver.drive(run)
        return points(run, record.rows, record.samples, self.goal, _WARM_S)[0]


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = options(__doc__.splitlines()[0])
    parser.add_argument("--modes", default="default")
    parser.add_argument("--lengths", default="uniform:16-64")
    parser.add_argument("--prompts", default="", help="JSON lines with messages or prompt")
    parser.add_argument("--users", default="StreamUser", help="StreamUser, ChatStreamUser or CompletionStreamUser")
    parser.add_argument("--first-block-p95-ms", type=float, default=500.0)
    parser.add_argument("--gap-p95-ms", type=float, default=300.0)
    parser.add_argument("--good-first-block-ms", type=float, help="goodput's goal; default: --first-block-p95-ms")
    parser.add_argument("--good-gap-ms", type=float, help="goodput's goal; default: --gap-p95-ms")
    parser.add_argument("--seconds", type=float, default=15.0, help="length of a probe; the last one is twice as long")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--tolerance", type=float, default=0.07)
    parser.add_argument("--api-key", default="")
    parser.add_argument("--out", type=Path, default=Path("loadtest-capacity"))
    return parser.parse_args(arguments)


def goal_of(arguments: argparse.Namespace) -> Slo:
    """When an answer counts as goodput. ValueError if a time is not positive."""
    goal = Slo(
        arguments.first_block_p95_ms if arguments.good_first_block_ms is None else arguments.good_first_block_ms,
        arguments.gap_p95_ms if arguments.good_gap_ms is None else arguments.good_gap_ms,
    )
    for name, value in vars(goal).items():
        if not value > 0:
            raise ValueError(f"goodput's {name} is {value:g}; allowed: more than 0")
    return goal


async def run(arguments: argparse.Namespace) -> int:
    limits, goal = Limits(arguments.first_block_p95_ms, arguments.gap_p95_ms), goal_of(arguments)
    (arguments.out / "raw").mkdir(parents=True, exist_ok=True)
    like = Run(
        "capacity", "1:1", arguments.users, arguments.modes, lengths=arguments.lengths, prompts=arguments.prompts
    )
    async with service(arguments) as running:
        driver = Driver(running.url, arguments.out / "raw", arguments.api_key)
        probe = Probe(driver, like, limits, goal, arguments.repeats, [])
        first = 0.7 * await probe.most()
        rate = await highest(lambda rate: probe.run(rate, arguments.seconds), first, arguments.tolerance)
        rate = await confirmed(lambda rate: probe.run(rate, 2 * arguments.seconds), rate, arguments.tolerance)
    return conclude(arguments, probe, rate)


# --- the result ------------------------------------------------------------------------------------


#: fields of a row without `broken` -> their headings
_COLUMNS = {
    "rate": "rate",
    "arrived_per_s": "arrived/s",
    "answered_per_s": "answered/s",
    "tokens_per_s": "tokens/s",
    "goodput_per_s": "goodput/s",
    "goodput_tokens_per_s": "goodput tokens/s",
    "good_share": "good",
    "first_block_p95_ms": "first block p95 ms",
    "gap_p95_ms": "between blocks p95 ms",
}


def row_of(point: Point, broken: str) -> dict[str, Any]:
    """A probe's row. `rate` was planned, `arrived_per_s` came. `broken`: why the rate does not hold, or empty."""
    values = (
        point.level, point.requests / point.seconds, point.requests_per_s, point.tokens_per_s, point.good_per_s,
        point.good_tokens_per_s, point.good_share, point.first_block_p95_ms, point.gap_p95_ms,
    )  # fmt: skip
    rounded = (None if value is None else float(f"{value:.4g}") for value in values)
    return {**dict(zip(_COLUMNS, rounded, strict=True)), "rate": point.level, "broken": broken}


def table(rows: Sequence[dict[str, Any]], goal: Slo) -> str:
    """A Markdown table of the rows by rate, under a line that names the goal of goodput."""
    heads = [*_COLUMNS.values(), "holds"]
    lines = [f"goodput: first block within {goal.first_block_ms:g} ms, each further one within {goal.gap_ms:g} ms", ""]
    lines += [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for row in sorted(rows, key=lambda row: float(row["rate"])):
        values = ["-" if row[name] is None else f"{row[name]:g}" for name in _COLUMNS]
        lines.append(f"| {' | '.join([*values, row['broken'] or 'yes'])} |")
    return "\n".join(lines)


def conclude(arguments: argparse.Namespace, probe: Probe, rate: float) -> int:
    picture, limits = arguments.out / "capacity.png", probe.limits
    draw(probe.tried, (limits.first_block_p95_ms, limits.gap_p95_ms), rate, picture)
    last, rows = probe.tried[-1], [row_of(point, limits.broken(point)) for point in probe.tried]
    result = {
        "capacity_requests_per_s": round(rate, 2),
        "modes": arguments.modes,
        "lengths": arguments.lengths,
        "objective": vars(limits),
        "goodput_goal": vars(probe.goal),
        "most_goodput_per_s": max(row["goodput_per_s"] for row in rows),
        "at_capacity": vars(last) if rate else None,
        "probes": rows,
    }
    (arguments.out / "capacity.json").write_text(json.dumps(result, indent=1), encoding="utf-8")
    say(table(rows, probe.goal))
    say(f"capacity: {rate:.3g} requests a second ({last.tokens_per_s:.0f} tokens/s); {picture}")
    print(json.dumps(result), flush=True)
    return 0 if rate else 1


def main() -> int:
    try:
        return asyncio.run(run(parse()))
    except ValueError as error:
        raise SystemExit(f"capacity: {error}") from None


if __name__ == "__main__":
    sys.exit(main())
