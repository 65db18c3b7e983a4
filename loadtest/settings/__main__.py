"""What each of Serve's settings does to a lone answer and to throughput.

The service is started anew for each setting, with one thing changed. Settings take turns in rounds, and every round
begins with another one, since machines are shared. Lone answers are compared with the engine alone, in turn. The result
is a table of medians, and of medians of the differences from the service as it is shipped in the same round.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from loadtest.harness import Running, percentile, say, service
from loadtest.overhead.__main__ import fixed, over_http
from loadtest.overhead.alone import Alone
from loadtest.overhead.cpu import at_rest
from loadtest.overhead.lone import live, lone
from loadtest.report.driver import Driver
from loadtest.settings.known import SETTINGS, changed, chosen, turns
from loadtest.settings.table import Found, table


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m loadtest.settings", description=__doc__.splitlines()[0])
    parser.formatter_class = argparse.ArgumentDefaultsHelpFormatter
    parser.add_argument("--only", default=",".join(SETTINGS), help="names of the table, with commas between")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--lone", type=int, default=100, help="lone requests of a setting in a round")
    parser.add_argument("--short", type=int, default=16, help="tokens of a lone request")
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=15.0, help="seconds at saturation; 0: none")
    parser.add_argument("--lengths", default="uniform:32-96", help="tokens of the answers at saturation")
    parser.add_argument("--kind", choices=("whole", "stream"), default="whole", help="answers at saturation")
    parser.add_argument("--mode", default="static")
    parser.add_argument("--threads", type=int, default=1, help="torch threads, in the replica and here")
    parser.add_argument("--flags", default="", help="further flags of `mrp-serve serve`, in one text")
    parser.add_argument("--seed", type=int, default=17)
    parser.add_argument("--out", type=Path, default=Path("loadtest-settings"))
    parser.set_defaults(url=None)  # services of other people's settings cannot be changed
    return parser.parse_args(arguments)


async def run(arguments: argparse.Namespace) -> int:
    names = chosen(arguments.only)
    arguments.out.mkdir(parents=True, exist_ok=True)
    alone = Alone(None, arguments.threads, max_running=max(64, arguments.concurrency))
    gc.freeze()
    found: list[Found] = []
    with (arguments.out / "rows.jsonl").open("w", encoding="utf-8") as rows:
        for number, name in turns(names, arguments.rounds):
            found.append(await measured(arguments, alone, number, name))
            say(f"round {number + 1}, {name}: {found[-1]}")
            rows.write(json.dumps(asdict(found[-1])) + "\n")
            rows.flush()
    said = table(found, names)
    (arguments.out / "table.md").write_text(said + "\n", encoding="utf-8")
    say(said)
    print(json.dumps({"script": "settings", "rows": [asdict(one) for one in found]}), flush=True)
    return 1 if any(one.error for one in found) else 0


async def measured(arguments: argparse.Namespace, alone: Alone, number: int, name: str) -> Found:
    """Starts the service with a setting and measures it. A service that does not start or answer is a finding."""
    flags = ["--torch-threads", arguments.threads, "--max-running", max(64, arguments.concurrency)]
    with changed(name) as (environment, more):
        try:
            async with service(arguments, *flags, *more, environment=environment) as running:
                return await _measured(arguments, alone, running, (number, name))
        except SystemExit as error:
            return Found(name, number, error=str(error))


async def _measured(arguments: argparse.Namespace, alone: Alone, running: Running, turn: tuple[int, str]) -> Found:
    number, name = turn
    short = fixed(arguments, arguments.short)
    bodies = [short.request(index, f"lone-{number}").body for index in range(arguments.lone)]
    rest = await at_rest(running, seconds=4.0)
    [answered] = await asyncio.to_thread(live, [running.url], 2 * arguments.lone)
    singles = await asyncio.to_thread(lone, alone, running.url, bodies)
    more = [1e3 * (one.over_http - one.alone) for one in singles]
    tokens_per_s = 0.0
    if arguments.seconds:
        tokens_per_s = await over_http(Driver(running.url, arguments.out), arguments, f"{arguments.kind}-{number}")
    return Found(
        name,
        number,
        lone_more_p50_ms=statistics.median(more),
        lone_more_p99_ms=percentile(more, 0.99) or 0.0,
        live_p50_ms=1e3 * statistics.median(answered),
        tokens_per_s=tokens_per_s,
        rest_cpu_ms=sum(rest.values()),
    )


def main() -> int:
    """The program; what was asked wrongly is one line."""
    try:
        return asyncio.run(run(parse()))
    except ValueError as error:
        raise SystemExit(f"settings: {error}") from None


if __name__ == "__main__":
    sys.exit(main())
