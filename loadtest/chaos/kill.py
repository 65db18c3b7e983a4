"""Kills (or stops) replicas of the model repeatedly under load: no request may be lost, and no answer may differ.

Every request was answered before in a quiet run with the same seed. After each kill, the script waits until Serve has
started another replica. A stopped replica behaves like one that hangs; it is continued later.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import sys
import time
from contextlib import suppress

import httpx

from loadtest.chaos.steady import Tally, clients
from loadtest.harness import (
    ENGINE,
    Running,
    demo_prompts,
    metrics,
    options,
    percentile,
    processes,
    ready,
    report,
    requests,
    say,
    service,
)


def parse() -> argparse.Namespace:
    parser = options(__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--bodies", type=int, default=96, help="different requests, sent repeatedly")
    parser.add_argument("--tokens", type=int, default=96, help="tokens of every answer")
    parser.add_argument("--victim", choices=("replica", "engine"), default="replica", help="which of its processes")
    parser.add_argument("--signal", choices=("KILL", "STOP"), default="KILL")
    parser.add_argument("--stopped-s", type=float, default=15.0, help="how long a replica is stopped")
    parser.add_argument("--settle-s", type=float, default=2.0, help="load before each kill")
    return parser.parse_args()


async def disturb(client: httpx.AsyncClient, running: Running, arguments: argparse.Namespace) -> list[float]:
    """Kills one replica after the other. Returns the seconds until all were ready again."""
    draw, recoveries = random.Random(arguments.seed), []
    for number in range(arguments.kills):
        await asyncio.sleep(arguments.settle_s)
        victim = draw.choice(processes(running, ENGINE if arguments.victim == "engine" else "Generator"))
        began = time.monotonic()
        os.kill(victim, getattr(signal, f"SIG{arguments.signal}"))
        if arguments.signal == "STOP":
            await asyncio.sleep(arguments.stopped_s)
            go_on(victim)
        await replaced(running, victim, arguments)
        await ready(client, arguments.replicas)
        recoveries.append(time.monotonic() - began)
        say(f"kill {number + 1} of {arguments.kills}: process {victim}, all ready after {recoveries[-1]:.1f} s")
    return recoveries


def go_on(process: int) -> None:
    """Continues a stopped process, if it has not been replaced."""
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGCONT)


async def replaced(running: Running, victim: int, arguments: argparse.Namespace) -> None:
    """Waits until all replicas have processes again. GET /health may still give an old answer."""
    for _ in range(1200):
        there, engines = processes(running, "Generator"), processes(running, ENGINE)
        gone = arguments.signal == "STOP" or victim not in {*there, *engines}
        if gone and all(len(some) >= arguments.replicas for some in (there, engines or there)):
            return
        await asyncio.sleep(0.1)
    raise SystemExit("no replica was started in place of the killed one within two minutes")


async def run(arguments: argparse.Namespace) -> int:
    async with service(arguments, "--num-replicas", arguments.replicas) as running:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=running.url, timeout=180, limits=limits) as client:
            await ready(client, arguments.replicas)
            bodies = requests(arguments.bodies, arguments.seed, arguments.tokens, demo_prompts())
            async with clients(client, bodies, arguments.concurrency) as tally:
                recoveries = await disturb(client, running, arguments)
            totals = await metrics(client)
    return conclude(arguments, tally, recoveries, totals)


def conclude(arguments: argparse.Namespace, tally: Tally, recoveries: list[float], totals: dict[str, float]) -> int:
    failed = sum(tally.failed.values())
    result = {
        "signal": arguments.signal,
        "kills": len(recoveries),
        "concurrency": arguments.concurrency,
        "replicas": arguments.replicas,
        "answered": tally.answered,
        "failed": failed,
        "failures": dict(tally.failed.most_common(8)),
        "differing": len(tally.differing),
        "differences": tally.differing[:8],
        "longest_pause_s": percentile(tally.pauses, 1.0),
        "p99_pause_s": percentile(tally.pauses, 0.99),
        "longest_first_block_s": percentile(tally.first_blocks, 1.0),
        "longest_answer_s": percentile(tally.totals, 1.0),
        "longest_recovery_s": percentile(recoveries, 1.0),
        **{name: value for name, value in totals.items() if "failover" in name or "continu" in name},
    }
    return report("kill", result, tally.broken)


if __name__ == "__main__":
    sys.exit(asyncio.run(run(parse())))
