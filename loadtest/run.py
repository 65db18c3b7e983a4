"""`make loadtest`: runs a scenario on the demo, or on the service of `--url`, and writes its points and pictures.

`python -m loadtest.run --scenario default --out loadtest-report`.
"""

import argparse
import asyncio
import csv
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields
from pathlib import Path

import httpx

from loadtest.harness import options, say, service
from loadtest.report import figures
from loadtest.report import scenario as scenarios
from loadtest.report.driver import Driver
from loadtest.report.scenario import Run, Scenario
from loadtest.report.summary import Point, points


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = options(__doc__.splitlines()[0])
    parser.add_argument("--scenario", default="default", help="name or YAML file")
    parser.add_argument("--out", type=Path, default=Path("loadtest-report"))
    parser.add_argument("--only", default="", help="runs of the scenario, with commas between")
    parser.add_argument("--api-key", default="")
    return parser.parse_args(arguments)


async def run(arguments: argparse.Namespace) -> None:
    scenario = scenarios.read(arguments.scenario)
    (arguments.out / "raw").mkdir(parents=True, exist_ok=True)
    say(f"{scenario.title}: about {scenario.seconds / 60 + 0.5:.1f} minutes, into {arguments.out}")
    async with service(arguments) as running:
        driver = Driver(running.url, arguments.out / "raw", arguments.api_key)
        modes = await served_modes(running.url, arguments.api_key)
        measured = await measure(scenario, driver, modes, arguments.only)
    save(measured, arguments.out)
    draw(scenario, measured, arguments.out)
    say(f"written: {arguments.out}/points.csv, points.json and pictures")


async def served_modes(url: str, api_key: str) -> set[str] | None:
    """The modes of the first model of /v1/models. None: another server, which names none."""
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=30) as http:
        card = (await http.get("/v1/models")).json()["data"][0]
    return set(card["modes"]) if "modes" in card else None


async def measure(scenario: Scenario, driver: Driver, modes: set[str] | None, only: str) -> list[Point]:
    measured: list[Point] = []
    for planned in scenario.runs:
        if only and planned.name not in only.split(","):
            continue
        if modes is not None and (missing := planned.needs - modes):
            say(f"{planned.name}: left out, the service has no mode {', '.join(sorted(missing))}")
            continue
        current, best = planned, max((p.requests_per_s for p in measured if p.run == planned.of), default=0.0)
        if planned.of and not best:
            say(f"{planned.name}: left out, {planned.of} was not run")
            continue
        if planned.of:  # its levels are multiples of the highest rate of another run
            current = planned.scaled(best)
        record = await driver.drive(current)
        levels = points(current, record.rows, record.samples, scenario.slo, scenario.warm_s)
        say("\n".join(line(point) for point in levels if not point.part))
        measured += levels
    return measured


def line(point: Point) -> str:
    unit = "users     " if point.loop == "closed" else "requests/s"
    first = "-" if point.first_block_p95_ms is None else f"{point.first_block_p95_ms:.0f} ms"
    gap = "-" if point.gap_p95_ms is None else f"{point.gap_p95_ms:.0f} ms"
    return (
        f"  {point.run:<18} {point.level:>6.4g} {unit}  {point.tokens_per_s:>7.0f} tokens/s"
        f"  goodput {point.good_per_s:>6.4g} requests/s"
        f"  p95 first block {first:>8}, between blocks {gap:>7}"
        f"  {point.requests} requests, {point.failed} failed, {point.unfinished} unfinished"
    )


def save(measured: Sequence[Point], folder: Path) -> None:
    (folder / "points.json").write_text(json.dumps([asdict(point) for point in measured], indent=1), encoding="utf-8")
    with (folder / "points.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Point)])
        writer.writeheader()
        writer.writerows(asdict(point) for point in measured)


def draw(scenario: Scenario, measured: Sequence[Point], folder: Path) -> None:
    def of(choose: Callable[[Run], bool]) -> dict[str, list[Point]]:
        names = [run.name for run in scenario.runs if choose(run)]
        groups = {name: [point for point in measured if point.run == name and not point.part] for name in names}
        return {name: group for name, group in groups.items() if group}

    single = of(lambda run: run.loop == "closed" and not run.mixed)
    if modes := {name: group for name, group in single.items() if len(group) > 1}:
        figures.modes(modes, scenario.slo, folder)
    alone = {(point.mode, point.level): point for group in modes.values() for point in group}
    mixed = {(point.mode, point.level): point for point in measured if point.part and point.loop == "closed"}
    if pairs := [(alone[key], mixed[key]) for key in alone if key in mixed]:
        figures.together(pairs, folder)
    if arrivals := of(lambda run: run.loop == "open"):
        figures.arrivals(arrivals, scenario.slo, folder)


def main() -> None:
    try:
        asyncio.run(run(parse()))
    except ValueError as error:
        sys.exit(f"loadtest: {error}")


if __name__ == "__main__":
    main()
