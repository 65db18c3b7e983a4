"""Clients with known answers: each request was answered before in a quiet run with the same seed.

The answers must not differ, whatever a script does to the service meanwhile.
"""

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from loadtest.generator.protocol import Observation
from loadtest.harness import ask

Ask = Callable[[httpx.AsyncClient, dict[str, Any]], Awaitable[Observation]]


@dataclass
class Tally:
    """What clients got. `arrivals`: when each block came. `ended`: when each answer was complete."""

    answered: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    differing: list[dict[str, Any]] = field(default_factory=list)
    pauses: list[float] = field(default_factory=list)
    totals: list[float] = field(default_factory=list)
    arrivals: list[float] = field(default_factory=list)
    ended: list[float] = field(default_factory=list)

    def count(self, body: dict[str, Any], quiet: Observation, outcome: Observation) -> None:
        if not outcome.ok:
            self.fail("stream" if body["stream"] else "whole", outcome)
            return
        self.answered += 1
        self.totals.append(outcome.total_s)
        arrivals = [at for at, _ in outcome.blocks]
        self.arrivals += arrivals
        self.ended.append(outcome.ended)
        if body["stream"]:
            self.pauses += [after - before for before, after in itertools.pairwise([*arrivals, outcome.ended])]
        if (outcome.token_ids, outcome.text, outcome.finish) != (quiet.token_ids, quiet.text, quiet.finish):
            self.differing.append({name: body[name] for name in ("mode", "temperature", "seed", "stream")})

    def fail(self, kind: str, outcome: Observation) -> None:
        self.failed[f"{kind} {outcome.status} {outcome.error}"[:160]] += 1

    @property
    def broken(self) -> list[str]:
        failed = sum(self.failed.values())
        broken = [f"{failed} requests failed"] if failed else []
        broken += [f"{len(self.differing)} answers differ"] if self.differing else []
        return broken + ([] if self.answered else ["nothing was answered"])


def longest_pause_s(times: Iterable[float]) -> float:
    pairs = itertools.pairwise(sorted(times))
    return round(max((after - before for before, after in pairs), default=0.0), 3)


@asynccontextmanager
async def clients(
    client: httpx.AsyncClient, bodies: list[dict[str, Any]], concurrency: int, tally: Tally, ask: Ask = ask
) -> AsyncIterator[None]:
    """`concurrency` clients in a closed loop, after a quiet run and until the context ends."""
    pairs = list(zip(bodies, await quiet_run(client, bodies), strict=True))
    ended = asyncio.Event()

    async def load(first: int) -> None:
        for body, quiet in itertools.cycle(pairs[first:] + pairs[:first]):
            if ended.is_set():
                return
            outcome = await ask(client, body)
            tally.count(body, quiet, outcome)
            if not outcome.ok:
                await asyncio.sleep(0.2)  # a client that tries again at once would count one outage many times

    tasks = [asyncio.create_task(load(number % len(pairs))) for number in range(concurrency)]
    yield
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
