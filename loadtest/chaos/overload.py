"""Three times the load of a service's capacity: it must keep its throughput and refuse the rest clearly and in time.

Requests arrive at random (Poisson) at a multiple of the capacity of a closed loop. A refused client obeys Retry-After
once. The clients are aiohttp's: httpx looks at every connection of its pool for every request.
"""

import argparse
import asyncio
import itertools
import random
import sys
import time
from collections import Counter
from typing import Any

import aiohttp

from loadtest.generator.arrivals import Profile, Stage, poisson
from loadtest.generator.protocol import Observation
from loadtest.harness import GENERATE, observation_of, options, percentile, receive, report, requests, say, service

#: what a client got: an answer or a refusal, and then the outcome of its second request
Outcomes = list[Observation]


def parse() -> argparse.Namespace:
    parser = options(__doc__.splitlines()[0])
    parser.add_argument("--factor", type=float, default=3.0, help="arrivals, in capacities")
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--capacity-s", type=float, default=30.0, help="how long capacity is measured")
    parser.add_argument("--concurrency", type=int, default=64, help="clients that measure capacity")
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--goodput", type=float, default=0.9, help="share of capacity that must be served")
    parser.add_argument("--p99-s", type=float, default=30.0, help="bound of the p99 of accepted requests")
    parser.add_argument("--obeyed", type=float, default=0.9, help="share of obeyed retries that must succeed")
    return parser.parse_args()


async def ask(session: aiohttp.ClientSession, body: dict[str, Any]) -> Observation:
    seen = observation_of(body)
    try:
        async with session.post(GENERATE, json=body) as response:
            await receive(seen, response.status, response.headers, response.content, response.read)
    except (aiohttp.ClientError, TimeoutError) as error:
        seen.lost(error, time.monotonic())
    return seen


async def capacity(
    session: aiohttp.ClientSession, bodies: list[dict[str, Any]], arguments: argparse.Namespace
) -> float:
    waiting, answered, began = itertools.cycle(bodies), [], time.monotonic()
    until = began + arguments.capacity_s

    async def client() -> None:
        while time.monotonic() < until:
            outcome = await ask(session, next(waiting))
            if outcome.ok:
                answered.append(time.monotonic())
            else:
                await asyncio.sleep(outcome.retry_after or 0.2)

    await asyncio.gather(*(client() for _ in range(arguments.concurrency)))
    warm = began + arguments.capacity_s / 3
    return sum(warm < at <= until for at in answered) / (until - warm)


async def arrive(session: aiohttp.ClientSession, body: dict[str, Any]) -> Outcomes:
    first = await ask(session, body)
    if first.status != 429 or first.retry_after is None:
        return [first]
    await asyncio.sleep(first.retry_after)
    return [first, await ask(session, body)]


async def open_loop(
    session: aiohttp.ClientSession, bodies: list[dict[str, Any]], rate: float, arguments: argparse.Namespace
) -> list[Outcomes]:
    profile, began, clients = Profile((Stage(arguments.seconds, rate, rate),)), time.monotonic(), []
    for at, body in zip(poisson(profile, 1.0, random.Random(arguments.seed)), itertools.cycle(bodies), strict=False):
        await asyncio.sleep(max(0.0, began + at - time.monotonic()))
        clients.append(asyncio.create_task(arrive(session, body)))
    return await asyncio.gather(*clients)


async def run(arguments: argparse.Namespace) -> int:
    limit, timeout = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(total=180)
    async with (
        service(arguments) as running,
        aiohttp.ClientSession(running.url, connector=limit, timeout=timeout) as session,
    ):
        bodies = requests(512, arguments.seed, arguments.tokens)
        most = await capacity(session, bodies, arguments)
        say(f"capacity: {most:.1f} answers a second")
        cpu, began = time.process_time(), time.monotonic()
        arrivals = await open_loop(session, bodies, arguments.factor * most, arguments)
        busy = (time.process_time() - cpu) / (time.monotonic() - began)
    # Only the steady state counts, without the start and the time after the last arrival.
    warm, until = began + arguments.seconds / 6, began + arguments.seconds
    goodput = sum(warm < ends[-1].ended <= until for ends in arrivals if ends[-1].ok) / (until - warm)
    return conclude(arguments, most, goodput, arrivals, busy)


def conclude(arguments: argparse.Namespace, most: float, goodput: float, arrivals: list[Outcomes], busy: float) -> int:
    """`most`: the closed loop's answers a second. `busy`: the share of a core that the clients took."""
    outcomes = list(itertools.chain(*arrivals))
    times = [outcome.total_s for outcome in outcomes if outcome.ok]
    refused = [outcome for outcome in outcomes if outcome.status == 429]
    retried = [second for _, *retries in arrivals for second in retries]
    waits = [outcome.retry_after for outcome in refused if outcome.retry_after is not None]
    unexpected = Counter(f"{o.status} {o.error}"[:120] for o in outcomes if not o.ok and o.status != 429)
    obeyed = sum(outcome.ok for outcome in retried) / len(retried) if retried else None
    result = {
        "capacity_per_s": round(most, 2),
        "offered_per_s": round(len(arrivals) / arguments.seconds, 2),
        "goodput_per_s": round(goodput, 2),
        "goodput_share": round(goodput / most, 3) if most else None,
        "accepted": len(times),
        "accepted_p50_s": percentile(times, 0.5),
        "accepted_p99_s": percentile(times, 0.99),
        "refusals": len(refused),
        "refusals_without_retry_after": len(refused) - len(waits),
        "retry_after_p50_s": percentile(waits, 0.5),
        "retry_after_longest_s": percentile(waits, 1.0),
        "obeyed_retries": len(retried),
        "obeyed_succeeded": None if obeyed is None else round(obeyed, 3),
        "other_outcomes": dict(unexpected),
        "clients_cpu": round(busy, 2),
    }
    return report("overload", result, broken(arguments, result))


def broken(arguments: argparse.Namespace, result: dict[str, Any]) -> list[str]:
    obeyed = result["obeyed_succeeded"]
    checks = {
        f"goodput is {result['goodput_share']} of capacity": (result["goodput_share"] or 0) < arguments.goodput,
        f"p99 is {result['accepted_p99_s']} s": (result["accepted_p99_s"] or 1e9) > arguments.p99_s,
        "refusals without Retry-After": result["refusals_without_retry_after"] > 0,
        f"{obeyed} of the obeyed retries succeed": obeyed is not None and obeyed < arguments.obeyed,
        "outcomes besides answers and 429": bool(result["other_outcomes"]),
    }
    return [what for what, wrong in checks.items() if wrong]


if __name__ == "__main__":
    sys.exit(asyncio.run(run(parse())))
