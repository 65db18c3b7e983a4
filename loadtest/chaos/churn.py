"""Thousands of requests whose clients leave or run into their timeout: no page, request or memory may be left behind.

A client leaves before the first block, within a stream, or while a whole answer is decoded. Or its `timeout_s` is too
short, or it stays to the end. Memory is compared after a warm-up of the same kind.
"""

import argparse
import asyncio
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import httpx

from loadtest.generator.protocol import Observation
from loadtest.harness import GENERATE, ask, client_of, memory, metrics, options, report, requests, samples, say, service

LEAVING = ("leaves unary", "leaves before first block", "leaves mid-stream")
KINDS = ("stays", *LEAVING, "times out")
REST = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")


def parse() -> argparse.Namespace:
    parser = options(__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--warm-up", type=int, default=1500, help="requests before memory is first read")
    parser.add_argument("--concurrency", type=int, default=48)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--growth-mib", type=float, default=48.0, help="the most that a process may grow after that")
    return parser.parse_args()


async def disturb(
    client: httpx.AsyncClient, body: dict[str, Any], kind: str, draw: random.Random, stay_s: float
) -> str:
    if kind == "stays":
        return described(await ask(client, body))
    if kind == "times out":
        outcome = await ask(client, {**body, "timeout_s": 10 ** draw.uniform(-4, -1)})
        late = outcome.status == 504 or outcome.finish == "timeout" or outcome.error.startswith("deadline_exceeded")
        return "timed out" if late else described(outcome)
    if kind == "leaves mid-stream":
        return await leave_mid_stream(client, {**body, "stream": True}, draw.randint(1, 4))
    try:
        async with asyncio.timeout(stay_s * 10 ** draw.uniform(-2.3, 0)):
            return described(await ask(client, {**body, "stream": kind == "leaves before first block"}))
    except TimeoutError:
        return "left"


def described(outcome: Observation) -> str:
    return "answered" if outcome.ok else f"{outcome.status} {outcome.error}"[:100]


async def leave_mid_stream(client: httpx.AsyncClient, body: dict[str, Any], frames: int) -> str:
    try:
        async with client.stream("POST", GENERATE, json=body) as response:
            if response.status_code != 200:
                return f"{response.status_code} to a stream"
            async for line in response.aiter_lines():
                frames -= line.startswith("data: ")
                if not frames:
                    return "left"
    except httpx.TransportError as error:
        return f"0 {type(error).__name__}"
    return "answered"


async def churn(
    client: httpx.AsyncClient, bodies: Sequence[dict[str, Any]], concurrency: int, kinds: Sequence[str], stay_s: float
) -> Counter[str]:
    """How the requests ended. `stay_s`: the longest that a client stays that leaves without a block."""
    draw, waiting, ends = random.Random(len(bodies)), iter(bodies), Counter[str]()

    async def client_loop() -> None:
        for body in waiting:
            kind = draw.choice(kinds)
            ends[f"{kind}: {await disturb(client, body, kind, draw, stay_s)}"] += 1
            if (done := ends.total()) % 1000 == 0:
                say(f"{done} of {len(bodies)}")

    await asyncio.gather(*(client_loop() for _ in range(concurrency)))
    return ends


async def ended(client: httpx.AsyncClient) -> Counter[str]:
    """The ended requests of all replicas, by reason."""
    counts = Counter[str]()
    for sample in await samples(client):
        if sample.name == "mrp_request_success_total":
            counts[sample.labels["finished_reason"]] += int(sample.value)
    return counts


async def at_rest(client: httpx.AsyncClient, timeout_s: float = 60.0) -> dict[str, float]:
    until = time.monotonic() + timeout_s
    while True:
        totals = await metrics(client)
        rest = {name: totals.get(name, 0.0) for name in REST}
        if not any(rest.values()) or time.monotonic() > until:
            return rest
        await asyncio.sleep(0.2)


async def run(arguments: argparse.Namespace) -> int:
    warm_up = requests(arguments.warm_up, arguments.seed, arguments.tokens)
    bodies = requests(arguments.requests, arguments.seed + 1, arguments.tokens)
    async with service(arguments) as running, client_of(running.url) as client:
        await churn(client, warm_up, arguments.concurrency, KINDS, stay_s=0.2)
        await at_rest(client)
        before, began = memory(running), time.monotonic()
        ends = await churn(client, bodies, arguments.concurrency, KINDS, stay_s=0.2)
        seconds, rest = time.monotonic() - began, await at_rest(client)
        after, counted = memory(running), await ended(client)
        fine = await ask(client, requests(1, 1, 8)[0])
    growth = {name: round(after.get(name, 0.0) - mib, 1) for name, mib in before.items()}
    result = {
        "requests": ends.total(),
        "seconds": round(seconds, 1),
        "ends": dict(sorted(ends.items())),
        **rest,
        "ended_since_the_start": dict(sorted(counted.items())),
        "memory_before_mib": before,
        "memory_after_mib": after,
        "growth_mib": growth,
    }
    return report("churn", result, broken(arguments, result, before.keys() == after.keys(), fine.ok))


def broken(arguments: argparse.Namespace, result: dict[str, Any], same: bool, fine: bool) -> list[str]:
    strange = {end: count for end, count in result["ends"].items() if end.split(": ")[1][0].isdigit()}
    checks = {
        **{f"{name} is {result[name]}": result[name] != 0 for name in REST},
        f"unexpected ends: {strange}": bool(strange),
        "other processes than at the start": not same,
        f"memory grew by {result['growth_mib']}": max(result["growth_mib"].values(), default=0) > arguments.growth_mib,
        "the last request was not answered": not fine,
    }
    return [what for what, wrong in checks.items() if wrong]


if __name__ == "__main__":
    sys.exit(asyncio.run(run(parse())))
