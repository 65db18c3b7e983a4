"""Clients with known answers: each request was answered before in a quiet run with the same seed.

The answers must not differ, whatever a script does to the service meanwhile.
"""

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from loadtest.generator.protocol import Observation
from loadtest.harness import ask


@dataclass
class Tally:
    answered: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    differing: list[dict[str, Any]] = field(default_factory=list)
    pauses: list[float] = field(default_factory=list)
    totals: list[float] = field(default_factory=list)
    ended: list[float] = field(default_factory=list)  # when each answer was complete

    def count(self, body: dict[str, Any], quiet: Observation, outcome: Observation) -> None:
        if not outcome.ok:
            self.failed[f"{'stream' if body['stream'] else 'unary'} {outcome.status} {outcome.error}"[:160]] += 1
            return
        self.answered += 1
        self.totals.append(outcome.total_s)
        self.ended.append(time.monotonic())
        if body["stream"]:
            self.pauses += outcome.waits_s[1:]
        if (outcome.token_ids, outcome.text, outcome.finish) != (quiet.token_ids, quiet.text, quiet.finish):
            self.differing.append({name: body[name] for name in ("mode", "temperature", "seed", "stream")})

    @property
    def longest_silence_s(self) -> float:
        """The longest time from one answer to the next, of all clients together."""
        pauses = (after - before for before, after in itertools.pairwise(self.ended))
        return round(max(pauses, default=0.0), 3)

    @property
    def broken(self) -> list[str]:
        failed = sum(self.failed.values())
        broken = [f"{failed} requests failed"] if failed else []
        broken += [f"{len(self.differing)} answers differ"] if self.differing else []
        return broken + ([] if self.answered else ["nothing was answered"])


@asynccontextmanager
async def clients(client: httpx.AsyncClient, bodies: list[dict[str, Any]], concurrency: int) -> AsyncIterator[Tally]:
    """`concurrency` clients in a closed loop, after a quiet run and until the context ends."""
    pairs = list(zip(bodies, await quiet_run(client, bodies), strict=True))
    tally, ended = Tally(), asyncio.Event()

    async def load(first: int) -> None:
        for body, quiet in itertools.cycle(pairs[first:] + pairs[:first]):
            if ended.is_set():
                return
            outcome = await ask(client, body)
            tally.count(body, quiet, outcome)
            if not outcome.ok:
                await asyncio.sleep(0.2)  # a client that tries again at once would count one outage many times

    tasks = [asyncio.create_task(load(number % len(pairs))) for number in range(concurrency)]
    yield tally
    ended.set()
    await asyncio.gather(*tasks)


async def quiet_run(client: httpx.AsyncClient, bodies: list[dict[str, Any]]) -> list[Observation]:
    limit = asyncio.Semaphore(8)

    async def limited(body: dict[str, Any]) -> Observation:
        async with limit:
            return await ask(client, body)

    outcomes = await asyncio.gather(*map(limited, bodies))
    if bad := [outcome for outcome in outcomes if not outcome.ok]:
        raise SystemExit(f"{len(bad)} requests failed undisturbed, the first with {bad[0]}")
    return list(outcomes)
