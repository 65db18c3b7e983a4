"""`make loadtest`: runs a scenario on the demo, or on the service of `--url`, and writes a report with pictures.

`python -m loadtest.run --scenario default --out loadtest-report`. The exit status is 1 if a `--fail-if` came true.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path

import httpx

from loadtest.generator.rows import Client, Row
from loadtest.harness import options, say, service
from loadtest.report import scenario as scenarios
from loadtest.report.driver import Driver, Record
from loadtest.report.page import write
from loadtest.report.result import Result
from loadtest.report.scenario import Run, Scenario
from loadtest.report.summary import Point, points, windows
from loadtest.report.thresholds import Threshold

#: seconds by which a stage of arrivals may begin and end later than its level
_SETTLE_S = 2.0


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = options(__doc__.splitlines()[0])
    parser.add_argument("--scenario", default="default", help="name or YAML file")
    parser.add_argument("--out", type=Path, default=Path("loadtest-report"))
    parser.add_argument("--only", default="", help="runs of the scenario, with commas between")
    parser.add_argument("--api-key", default="")
    parser.add_argument("--fail-if", action="append", default=[], metavar="[RUN[@LEVEL]:]MEASURE>VALUE")
    return parser.parse_args(arguments)


async def run(arguments: argparse.Namespace) -> int:
    scenario = scenarios.read(arguments.scenario)
    thresholds = [Threshold.parse(text) for text in arguments.fail_if]
    (arguments.out / "raw").mkdir(parents=True, exist_ok=True)
    say(f"{scenario.title}: about {scenario.seconds / 60 + 0.5:.1f} minutes, into {arguments.out}")
    async with service(arguments) as running:
        driver = Driver(running.url, arguments.out / "raw", arguments.api_key)
        model = await card(running.url, arguments.api_key)
        result = Result(scenario, await measure(scenario, driver, model, arguments.only), model)
    save(result.points, arguments.out)
    say(f"report: {write(result, arguments.out)}")
    broken = [what for threshold in thresholds for what in threshold.broken(result.points)]
    say("\n".join(f"FAILED: {what}" for what in broken) or "no threshold is broken")
    return 1 if broken else 0


async def card(url: str, api_key: str) -> dict:
    """The first model of /v1/models. Other servers give fewer fields."""
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=30) as http:
        return (await http.get("/v1/models")).json()["data"][0]


async def measure(scenario: Scenario, driver: Driver, model: dict, only: str) -> list[Point]:
    """Makes all runs that the service can serve, one after the other."""
    found: list[Point] = []
    for wanted in scenario.runs:
        if only and wanted.name not in only.split(","):
            continue
        if missing := wanted.needs - set(model.get("modes", wanted.needs)):
            say(f"{wanted.name}: left out, the service has no mode {', '.join(sorted(missing))}")
            continue
        current = _scaled(wanted, found)
        if current is None:
            say(f"{wanted.name}: left out, {wanted.of} was not run")
            continue
        progress = Progress(scenario)
        record = await driver.drive(current, progress.show)
        progress.rest(record)
        found += points(current, record.rows, record.samples, scenario.slo, scenario.warm_s)
    return found


def _scaled(wanted: Run, found: Sequence[Point]) -> Run | None:
    """The run with its levels as multiples of the highest rate of another run."""
    if not wanted.of:
        return wanted
    best = max((point.requests_per_s for point in found if point.run == wanted.of), default=0.0)
    return wanted.scaled(best) if best else None


class Progress:
    """Prints a line for each level that has ended."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario, self._said = scenario, 0

    def show(self, record: Record) -> None:
        """Prints the new levels that have no request in progress."""
        until = settled(record.rows)
        ends = [window.until for window in windows(record.run, record.rows, self._scenario.warm_s)]
        self._say(record, sum(end + _SETTLE_S <= until for end in ends))

    def rest(self, record: Record) -> None:
        """Prints the remaining levels at the end."""
        self._say(record, len(self._points(record)))

    def _say(self, record: Record, count: int) -> None:
        if count > self._said:
            for point in self._points(record)[self._said : count]:
                say(line(point))
            self._said = count

    def _points(self, record: Record) -> list[Point]:
        every = points(record.run, record.rows, record.samples, self._scenario.slo, self._scenario.warm_s)
        return [point for point in every if not point.part]


def settled(rows: Sequence[Row]) -> float:
    """The time up to which all requests have ended, according to all processes of the load generator."""
    looks = {row.process: row for row in rows if isinstance(row, Client)}  # the last row of each process
    return min((look.at if look.oldest is None else look.oldest for look in looks.values()), default=0.0)


def line(point: Point) -> str:
    """The text line of one level."""
    unit = "users     " if point.loop == "closed" else "requests/s"
    first = "-" if point.first_block_p95_ms is None else f"{point.first_block_p95_ms:.0f} ms"
    gap = "-" if point.gap_p95_ms is None else f"{point.gap_p95_ms:.0f} ms"
    return (
        f"  {point.run:<18} {point.level:>6.4g} {unit}  {point.tokens_per_s:>7.0f} tokens/s"
        f"  goodput {point.good_per_s:>6.4g} requests/s"
        f"  p95 first block {first:>8}, between blocks {gap:>7}"
        f"  {point.requests} requests, {point.failed} failed, {point.unfinished} unfinished"
    )


def save(found: Sequence[Point], folder: Path) -> None:
    """Points as CSV and JSON."""
    (folder / "points.json").write_text(json.dumps([asdict(point) for point in found], indent=1), encoding="utf-8")
    with (folder / "points.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Point)])
        writer.writeheader()
        writer.writerows(asdict(point) for point in found)


def main() -> int:
    """The program; what was asked wrongly is one line."""
    try:
        return asyncio.run(run(parse()))
    except ValueError as error:
        raise SystemExit(f"loadtest: {error}") from None


if __name__ == "__main__":
    sys.exit(main())
