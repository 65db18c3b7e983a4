"""More answers than the KV cache holds, while processes die, weights change, replicas sleep, and clients leave.

Every few seconds one of these events happens. No answer may differ from a quiet run's, no request may fail, and no page
may be in use afterwards. Requests that lose their pages are counted.
"""

import argparse
import asyncio
import os
import random
import secrets
import signal
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import httpx

from loadtest.chaos.churn import KINDS, REST, at_rest, churn
from loadtest.chaos.steady import Tally, clients
from loadtest.harness import Running, client_of, metrics, options, percentile, processes, ready, report, requests, say
from loadtest.harness import service as started
from service.demo import CHECKPOINT

_REPLICAS, _BODIES = 2, 32
#: Of so many answers one is the text of a program, which does not end soon, so the engine expects less than what comes.
_LONG = 5
#: the seconds for which replicas sleep or pause, and those of work that may wait, more than ever does
_HALT_S, _QUEUE_S = 2.0, 1000.0

Event = Callable[[], Awaitable[object]]


def parse() -> argparse.Namespace:
    parser = options(__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--cache", type=int, default=640, help="tokens of the KV cache of each of two replicas")
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=320, help="the most tokens of an answer")
    parser.add_argument("--every-s", type=float, default=10.0, help="seconds between two events")
    return parser.parse_args()


class Events:
    """What happens to a service: each event once, in an order that is drawn, and again. `seed`: of the draws."""

    def __init__(self, running: Running, client: httpx.AsyncClient, seed: int) -> None:
        self._running, self._client, self._draw = running, client, random.Random(seed)
        self._leaving, self._next = requests(24, seed + 1, 256), list[str]()
        self._events: dict[str, Event] = {
            "engine killed": partial(self._kill, "engine"),
            "replica killed": partial(self._kill, "replica"),
            "paused": partial(self._halt, "pause", "continue"),
            "asleep": partial(self._halt, "sleep", "wake_up", level=1),
            "asleep without weights": partial(self._halt, "sleep", "wake_up", level=2),
            "weights updated": partial(self._order, "admin/weights", model=str(CHECKPOINT)),
            "prefix cache reset": partial(self._order, "reset_prefix_cache"),
            "clients left": partial(churn, client, self._leaving, 12, KINDS[1:], 1.0),
        }

    async def happen(self) -> str:
        self._next = self._next or self._draw.sample(list(self._events), len(self._events))
        name = self._next.pop()
        await self._events[name]()
        await ready(self._client, _REPLICAS)
        return name

    async def _kill(self, part: str) -> None:
        os.kill(self._draw.choice(processes(self._running, part)), signal.SIGKILL)
        await asyncio.sleep(1.0)  # it is missed by then

    async def _halt(self, begin: str, end: str, **fields: Any) -> None:
        await self._order(f"admin/{begin}", **fields)
        await asyncio.sleep(_HALT_S)
        await self._order(f"admin/{end}")

    async def _order(self, path: str, **fields: Any) -> None:
        (await self._client.post(f"/{path}", json=fields)).raise_for_status()


def bodies(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    drawn = requests(_BODIES, arguments.seed, arguments.tokens)
    long = {number: {"prompt": f"def f{number}(", "messages": None} for number in range(0, _BODIES, _LONG)}
    return [{**body, "ignore_eos": False, **long.get(number, {})} for number, body in enumerate(drawn)]


async def run(arguments: argparse.Namespace) -> int:
    key, counted, tally = secrets.token_hex(16), Counter[str](), Tally()
    flags = ("--num-replicas", _REPLICAS, "--max-num-seqs", arguments.clients, "--max-queue-s", _QUEUE_S)
    sizes = ("--kv-cache-tokens", arguments.cache, "--max-model-len", arguments.cache)
    preemptions = before = 0.0
    async with (
        started(arguments, *flags, *sizes, environment={"MRP_SERVE_ADMIN_KEYS": key}) as running,
        client_of(running.url) as client,
    ):
        client.headers["authorization"] = f"Bearer {key}"
        await ready(client, _REPLICAS)
        events = Events(running, client, arguments.seed)
        async with clients(client, bodies(arguments), arguments.clients, tally):
            until = time.monotonic() + 60 * arguments.minutes
            while time.monotonic() < until:
                await asyncio.sleep(arguments.every_s)
                now = (await metrics(client)).get("num_preemptions_total", 0.0)
                preemptions, before = preemptions + max(0.0, now - before), now  # a killed engine takes its count along
                counted[name := await events.happen()] += 1
                differ, failed = len(tally.differing), tally.failed.total()
                say(f"  {name}: {tally.answered} answered, {differ} differ, {failed} failed")
        rest = await at_rest(client)
    result = {
        "answered": tally.answered,
        "failed": dict(tally.failed),
        "differing": tally.differing,
        "events": dict(sorted(counted.items())),
        "preemptions": preemptions,
        "longest_answer_s": percentile(tally.totals, 1.0),
        **rest,
    }
    broken = [*tally.broken, *(f"{name} is {rest[name]}" for name in REST if rest[name])]
    return report("pressure", result, broken + ([] if preemptions else ["no request lost its pages"]))


if __name__ == "__main__":
    sys.exit(asyncio.run(run(parse())))
