"""`make loadtest`: runs locust for one mode after the other, over levels of users.

    make loadtest ARGS="--modes static speculative@mrp_steps=2 --levels 20:1,20:16,20:64"
    make loadtest ARGS="--modes default --loop open --levels 20:10,10:60,40:10"

Starts the demo, or uses the service of `--url`. Prints a line for each level. The folder `--out` gets locust's page,
CSV, log and rows of each mode. Further options are those of the locustfile and of locust.
"""

import argparse
import asyncio
from pathlib import Path

import httpx

from loadtest.driver import drive, levels
from loadtest.generator.arrivals import Profile
from loadtest.generator.workload import ALL_MODES, DEFAULT_MODE
from loadtest.harness import options, say, service

_WARM_S = 1.0
_LINE = "{:<26}{:>6}{:>12}{:>10}{:>20}{:>23}{:>8}"
_HEADS = ("run", "level", "requests/s", "tokens/s", "first block p95 ms", "between blocks p95 ms", "failed")


def parse() -> tuple[argparse.Namespace, list[str]]:
    parser = options((__doc__ or "").splitlines()[0])
    parser.add_argument("--modes", nargs="+", help="a run for each; default: the demo's modes, then all of them mixed")
    parser.add_argument("--levels", default="3:1,3:4,5:16,5:32", help="SECONDS:USERS,…")
    parser.add_argument("--classes", nargs="+", default=["StreamUser"], help="the locustfile's classes of users")
    parser.add_argument("--api-key", default="")
    parser.add_argument("--out", type=Path, default=Path("loadtest-report"))
    return parser.parse_known_args()


async def run(arguments: argparse.Namespace, locust_options: list[str]) -> None:
    common = [*arguments.classes, "--levels", arguments.levels, "--workload-seed", str(arguments.seed)]
    common += ["--api-key", arguments.api_key, *locust_options]
    async with service(arguments) as running:
        plans = arguments.modes or await served_plans(running.url, arguments.api_key)
        say(f"{len(plans)} runs of {Profile.parse(arguments.levels).seconds:g} s, and a few seconds around each")
        print(_LINE.format(*_HEADS), flush=True)
        for number, modes in enumerate(plans, 1):
            name = f"{number}-{'mixed' if ',' in modes else modes}"
            rows = await drive(running.url, arguments.out / name, *common, "--modes", modes)
            for level, seen in levels(rows, _WARM_S):
                times = ("-" if ms is None else f"{ms:.0f}" for ms in (seen.first_block_p95_ms, seen.gap_p95_ms))
                rates = (f"{seen.requests_per_s:.1f}", f"{seen.tokens_per_s:.0f}")
                print(_LINE.format(name, f"{level:g}", *rates, *times, seen.failed), flush=True)
    say(f"locust's pages: {arguments.out}/*.html; all numbers: *.csv; every request: *.jsonl")


async def served_plans(url: str, api_key: str) -> list[str]:
    """The demo's modes that the service has, alone and then mixed. Another server has no modes."""
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=30) as http:
        card = (await http.get("/v1/models")).json()["data"][0]
    plans = [plan for plan in ALL_MODES.split(",") if plan.partition("@")[0] in card.get("modes", ())]
    return [*plans, ",".join(plans)] if len(plans) > 1 else plans or [DEFAULT_MODE]


if __name__ == "__main__":
    asyncio.run(run(*parse()))
