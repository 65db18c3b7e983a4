"""Bad requests beside good ones: each bad one must get a 4xx with a reason, and no good one may be affected.

Bad requests have bodies that are not JSON, too long, incomplete, of wrong types, or with unknown fields and impossible
values; or unknown routes and methods. Good answers are compared with those of a quiet run with the same seeds.
"""

import argparse
import asyncio
import json
import random
import sys
import time
from collections import Counter
from typing import Any

import httpx

from loadtest.chaos.steady import Tally, clients
from loadtest.harness import GENERATE, options, percentile, report, requests, service

_LONG = json.dumps({"messages": [{"role": "user", "content": "x" * 2_000_000}], "seed": 1}).encode()
#: each of these makes a good body bad
BAD_FIELDS: tuple[dict[str, Any], ...] = (
    {"mode": "fastest"},
    {"mode": "static", "threshold": 0.5},
    {"mode": "dynamic", "threshold": 7},
    {"mode": "speculative", "mrp_steps": 10_000},
    {"max_new_tokens": 0},
    {"max_new_tokens": 2**40},
    {"max_new_tokens": "many"},
    {"temperature": -1},
    {"top_p": 0},
    {"seed": -1},
    {"messages": []},
    {"messages": [{"role": "nobody", "content": "?"}]},
    {"prompt": "and a chat"},
    {"prompt_token_ids": [10**9], "messages": None},
    {"stop": [7]},
    {"stop_token_ids": [-1]},
    {"unheard_of": True},
    {"stream": "yes"},
)


def parse() -> argparse.Namespace:
    parser = options(__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--good", type=int, default=8, help="clients that send good requests")
    parser.add_argument("--bad", type=int, default=8, help="clients that send bad requests")
    parser.add_argument("--bodies", type=int, default=48, help="different good requests, sent repeatedly")
    parser.add_argument("--tokens", type=int, default=48)
    return parser.parse_args()


def bad_request(draw: random.Random, good: dict[str, Any]) -> tuple[str, str, bytes]:
    plain = {name: good[name] for name in ("messages", "seed")}
    if draw.random() < 0.5:
        return "POST", GENERATE, json.dumps({**plain, **draw.choice(BAD_FIELDS)}).encode()
    body = json.dumps(plain).encode()
    kinds: tuple[tuple[str, str, bytes], ...] = (
        ("POST", GENERATE, b""),
        ("POST", GENERATE, body[: draw.randrange(1, len(body))]),
        ("POST", GENERATE, bytes(draw.randrange(256) for _ in range(64))),
        ("POST", GENERATE, b"[" * 50_000),
        ("POST", GENERATE, _LONG),
        ("POST", "/v1/chat/completions", json.dumps({**plain, "model": "another"}).encode()),
        ("PUT", GENERATE, body),
        ("POST", "/nowhere", body),
    )
    return draw.choice(kinds)


def fault(response: httpx.Response) -> str:
    """What is wrong with the answer to a bad request. Empty if the answer is a 4xx with a reason."""
    if not 400 <= response.status_code < 500:
        return f"status {response.status_code}"
    try:
        error = response.json()["error"]
    except (ValueError, KeyError, TypeError):
        return f"{response.status_code} without an error object"
    return "" if error.get("message") and error.get("code") else f"{response.status_code} does not say why"


async def disturb(
    client: httpx.AsyncClient, good: list[dict[str, Any]], seed: int, until: float, seen: Counter[str]
) -> None:
    draw = random.Random(seed)
    while time.monotonic() < until:
        method, path, body = bad_request(draw, draw.choice(good))
        headers = {"content-type": "application/json"}
        try:
            response = await client.request(method, path, content=body, headers=headers)
            wrong = fault(response)
            seen[f"BROKEN {method} {path}: {wrong}" if wrong else str(response.status_code)] += 1
        except httpx.TransportError as error:
            seen[f"BROKEN {method} {path}: {type(error).__name__}"] += 1


async def run(arguments: argparse.Namespace) -> int:
    seen, tally = Counter[str](), Tally()
    async with service(arguments) as running, httpx.AsyncClient(base_url=running.url, timeout=60) as client:
        bodies = requests(arguments.bodies, arguments.seed, arguments.tokens)
        async with clients(client, bodies, arguments.good, tally):
            until = time.monotonic() + arguments.seconds
            seeds = range(arguments.seed, arguments.seed + arguments.bad)
            await asyncio.gather(*(disturb(client, bodies, seed, until, seen) for seed in seeds))
        healthy = (await client.get("/health")).status_code == 200
    return conclude(tally, seen, healthy=healthy)


def conclude(tally: Tally, seen: Counter[str], *, healthy: bool) -> int:
    faults = {what: count for what, count in seen.items() if what.startswith("BROKEN")}
    result = {
        "good_answered": tally.answered,
        "good_failed": sum(tally.failed.values()),
        "failures": dict(tally.failed.most_common(8)),
        "good_differing": len(tally.differing),
        "good_p99_s": percentile(tally.totals, 0.99),
        "bad_refused": {status: count for status, count in sorted(seen.items()) if status not in faults},
        "bad_not_refused": faults,
    }
    broken = [*tally.broken, *faults] + ([] if healthy else ["the service is not healthy afterwards"])
    return report("bad_input", result, broken)


if __name__ == "__main__":
    sys.exit(asyncio.run(run(parse())))
