"""Kills (or stops) a replica of the model again and again under load: nothing is lost, no answer differs.

Every request was answered before in a quiet run, with the same seed. A killed replica is let recover before
the next one is: Serve has to start another first. A stopped one is a replica that hangs; it is let go on again.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import random
import signal
import sys
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import httpx

from loadtest.chaos.common import (
    Outcome,
    Running,
    ask,
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


@dataclass
class Tally:
    """What became of all requests under kills."""

    answered: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    differing: list[dict[str, Any]] = field(default_factory=list)
    first_blocks: list[float] = field(default_factory=list)
    pauses: list[float] = field(default_factory=list)
    totals: list[float] = field(default_factory=list)

    def count(self, body: dict[str, Any], quiet: Outcome, outcome: Outcome) -> None:
        """Compares an answer with that of the quiet run."""
        if not outcome.ok:
            self.failed[f"{'stream' if body['stream'] else 'unary'} {outcome.status} {outcome.error}"[:160]] += 1
            return
        self.answered += 1
        self.totals.append(outcome.total_s)
        if body["stream"]:
            self.first_blocks += outcome.gaps[:1]
            self.pauses += outcome.gaps[1:]
        if (outcome.tokens, outcome.text, outcome.finish) != (quiet.tokens, quiet.text, quiet.finish):
            self.differing.append({name: body[name] for name in ("mode", "temperature", "seed", "stream")})


def parse() -> argparse.Namespace:
    parser = options(__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--bodies", type=int, default=96, help="different requests, asked over and over")
    parser.add_argument("--tokens", type=int, default=96, help="tokens of every answer")
    parser.add_argument("--signal", choices=("KILL", "STOP"), default="KILL")
    parser.add_argument("--stopped-s", type=float, default=15.0, help="how long a stopped replica is left stopped")
    parser.add_argument("--settle-s", type=float, default=2.0, help="load before each kill")
    return parser.parse_args()


async def quiet_run(client: httpx.AsyncClient, bodies: list[dict[str, Any]]) -> list[Outcome]:
    """The undisturbed answers, a few at a time."""
    limit = asyncio.Semaphore(8)

    async def one(body: dict[str, Any]) -> Outcome:
        async with limit:
            return await ask(client, body)

    outcomes = await asyncio.gather(*map(one, bodies))
    if bad := [outcome for outcome in outcomes if not outcome.ok]:
        raise SystemExit(f"{len(bad)} requests failed without any kill, the first with {bad[0]}")
    return list(outcomes)


async def load(
    client: httpx.AsyncClient, pairs: list[tuple[dict[str, Any], Outcome]], tally: Tally, ended: asyncio.Event
) -> None:
    """One of the concurrent clients: asks the next request as soon as it has its answer."""
    for body, quiet in itertools.cycle(pairs):
        if ended.is_set():
            return
        outcome = await ask(client, body)
        tally.count(body, quiet, outcome)
        if not outcome.ok:
            await asyncio.sleep(0.2)  # a refused client that asks again at once would count the same outage often


async def disturb(client: httpx.AsyncClient, running: Running, arguments: argparse.Namespace) -> list[float]:
    """Kills one replica after the other; how long each time until all were ready again."""
    draw, recoveries = random.Random(arguments.seed), []
    for number in range(arguments.kills):
        await asyncio.sleep(arguments.settle_s)
        victim = draw.choice(processes(running, "Generator"))
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
    """Lets a stopped process go on, if it has not been replaced."""
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGCONT)


async def replaced(running: Running, victim: int, arguments: argparse.Namespace) -> None:
    """Waits until the replicas' processes are complete again, so that an old health answer does not count."""
    for _ in range(1200):
        there = processes(running, "Generator")
        if len(there) >= arguments.replicas and (arguments.signal == "STOP" or victim not in there):
            return
        await asyncio.sleep(0.1)
    raise SystemExit("no replica was started in place of the killed one within two minutes")


async def run(arguments: argparse.Namespace) -> int:
    async with service(arguments, "--num-replicas", arguments.replicas) as running:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=running.url, timeout=180, limits=limits) as client:
            await ready(client, arguments.replicas)
            bodies = requests(arguments.bodies, arguments.seed, arguments.tokens, demo_prompts())
            pairs = list(zip(bodies, await quiet_run(client, bodies), strict=True))
            tally, ended = Tally(), asyncio.Event()
            clients = [
                asyncio.create_task(load(client, pairs[first:] + pairs[:first], tally, ended))
                for first in (number % len(pairs) for number in range(arguments.concurrency))
            ]
            recoveries = await disturb(client, running, arguments)
            ended.set()
            await asyncio.gather(*clients)
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
    broken = [f"{failed} requests failed"] if failed else []
    broken += [f"{len(tally.differing)} answers differ"] if tally.differing else []
    broken += [] if tally.answered else ["nothing was answered"]
    return report("kill", result, broken)


if __name__ == "__main__":
    sys.exit(asyncio.run(run(parse())))
