"""Load steps up and down on three nodes: one replica, three, one again; what each second looked like.

    python -m loadtest.cluster.scale > dev/lab/results/cluster-scale.json

The clients are closed loops: each sends its next request when it has its answer, after a pause.
"""

import argparse
import asyncio
import sys
import time
from collections import Counter
from typing import Any

import httpx

from loadtest.cluster.nodes import Nodes, deployed, replicas_by_state
from loadtest.harness import ask, client_of, metrics, ready, report, requests, say

SETTINGS = {"device": "cpu", "max_num_seqs": 4, "num_replicas": 1, "max_replicas": 3}
DELAYS = {"upscale_delay_s": 2.0, "downscale_delay_s": 15.0}
THOUGHT_S = 1.0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=40, help="clients in the high step; the low steps have one")
    parser.add_argument("--low-s", type=float, default=15.0, help="seconds of the first step")
    parser.add_argument("--high-s", type=float, default=60.0, help="seconds of the second step")
    parser.add_argument("--back-s", type=float, default=150.0, help="the most seconds of the last step")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--seed", type=int, default=17)
    return parser.parse_args()


class Load:
    """The clients, whose number can change, and the outcomes of their requests."""

    def __init__(self, http: httpx.AsyncClient, bodies: list[dict[str, Any]]) -> None:
        self.http, self.bodies = http, bodies
        self.clients: list[asyncio.Task[None]] = []
        self.wanted = 0
        self.sent = self.tokens = 0
        self.outcomes: Counter[str] = Counter()

    def resize(self, clients: int) -> None:
        """Sets the number of clients. New ones start at once; others end when they have their answers."""
        self.wanted = clients
        self.clients += [asyncio.create_task(self._client(number)) for number in range(len(self.clients), clients)]

    async def _client(self, number: int) -> None:
        while number < self.wanted:
            body = self.bodies[self.sent % len(self.bodies)]
            self.sent += 1
            outcome = await ask(self.http, body)
            self.tokens += outcome.tokens
            self.outcomes["ok" if outcome.ok else f"{outcome.status} {outcome.error}"[:120]] += 1
            await asyncio.sleep(THOUGHT_S if self.wanted == 1 or not outcome.ok else 0)

    async def end(self) -> None:
        self.wanted = 0
        await asyncio.gather(*self.clients)


async def sample(http: httpx.AsyncClient, load: Load, rows: list[dict[str, Any]]) -> None:
    began, tokens, before = time.monotonic(), 0, time.monotonic()
    while True:
        page, states = await metrics(http), await asyncio.to_thread(replicas_by_state)
        now = time.monotonic()
        rows.append(
            {
                "s": round(now - began, 1),
                "clients": load.wanted,
                "waiting": page.get("num_requests_waiting", 0),
                "wanted": round(page["replicas_wanted"], 3),
                "target": states.get("RUNNING", 0) + states.get("STARTING", 0),
                "running": states.get("RUNNING", 0),
                "tokens_per_s": round((load.tokens - tokens) / max(0.1, now - before), 1),
            }
        )
        tokens, before = load.tokens, now
        await asyncio.sleep(max(0.0, 1.0 - (time.monotonic() - now)))


async def steps(nodes: Nodes, arguments: argparse.Namespace) -> tuple[list[dict[str, Any]], Load]:
    rows: list[dict[str, Any]] = []
    async with client_of(nodes.url) as http:
        await ready(http, 1)
        load = Load(http, requests(96, arguments.seed, arguments.tokens))
        sampling = asyncio.create_task(sample(http, load, rows))
        for clients, seconds in ((1, arguments.low_s), (arguments.clients, arguments.high_s)):
            load.resize(clients)
            say(f"{clients} clients for {seconds:.0f} s")
            await asyncio.sleep(seconds)
        load.resize(1)
        deadline = time.monotonic() + arguments.back_s
        while time.monotonic() < deadline and not (rows[-1]["running"] == rows[-1]["target"] == 1):
            await asyncio.sleep(1.0)
        await asyncio.sleep(5.0)
        await load.end()
        sampling.cancel()
    return rows, load


def conclude(rows: list[dict[str, Any]], load: Load, arguments: argparse.Namespace) -> int:
    up = arguments.low_s
    high = [row for row in rows if up <= row["s"] < up + arguments.high_s]
    most = max(row["running"] for row in rows)
    failed = sum(load.outcomes.values()) - load.outcomes["ok"]
    back = next((row["s"] for row in reversed(rows) if row["running"] > 1), 0.0) - up - arguments.high_s
    result = {
        "settings": SETTINGS,
        "clients": [1, arguments.clients, 1],
        "answered": load.outcomes["ok"],
        "failed": failed,
        "outcomes": dict(load.outcomes),
        "most_running": most,
        "three_wanted_after_s": _after(high, "target", 3, up),
        "three_running_after_s": _after(high, "running", 3, up),
        "one_running_again_after_s": round(back, 1),
        "tokens_per_s_by_replicas": {
            str(count): round(sum(row["tokens_per_s"] for row in some) / len(some), 1)
            for count in (1, 2, 3)
            if (some := [row for row in high if row["running"] == count])
        },
        "rows": rows,
    }
    broken = [f"{failed} requests failed"] if failed else []
    broken += [] if most == 3 and rows[-1]["running"] == 1 else ["the replicas were not 1, 3, 1"]
    return report("scale", result, broken)


def _after(rows: list[dict[str, Any]], name: str, count: int, began: float) -> float | None:
    return next((round(row["s"] - began, 1) for row in rows if row[name] >= count), None)


def main() -> int:
    arguments = parse()
    with deployed(SETTINGS, delays=DELAYS) as nodes:
        rows, load = asyncio.run(steps(nodes, arguments))
    return conclude(rows, load, arguments)


if __name__ == "__main__":
    sys.exit(main())
