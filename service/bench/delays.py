"""How late an event loop is while an engine decodes on another thread of its process.

A timer of the loop asks to be woken every few milliseconds. What it is late by is mostly the time that the loop waited
for Python's lock, for a garbage collection, or for its own callbacks. Called by `mrp-serve host`.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from pathlib import Path

from service.decode.mode import DecodingMode
from service.engine import Engine, EngineConfig, EngineDeps, EngineWorker, GenerationRequest
from service.engine.drafting.costs import StepCosts
from service.model import Checkpoint

#: seconds between two beats of the timer, and before the first one
_BEAT_S, _WARM_UP_S = 0.002, 1.0
_NEW_TOKENS = 512


@dataclass(frozen=True, slots=True)
class Delays:
    """How late a timer was, in milliseconds.

    The time that the loop's and the engine's thread waited for a core is left out: other programs used it.
    """

    beats: int
    median: float
    p99: float
    most: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Delays:
        """Of at least one beat."""
        late = sorted(1e3 * one for one in seconds)
        return cls(len(late), late[len(late) // 2], late[int(0.99 * (len(late) - 1))], late[-1])


def loop_delays(
    checkpoint: Checkpoint, requests: int, params: DecodingMode, seconds: float, costs: StepCosts | None = None
) -> Delays:
    """While so many requests decode, one after another in each place, with short prompts."""
    return asyncio.run(_measure(checkpoint, requests, params, seconds, costs))


async def _measure(
    checkpoint: Checkpoint, requests: int, params: DecodingMode, seconds: float, costs: StepCosts | None
) -> Delays:
    size = checkpoint.config.block_size
    tokens = min(_NEW_TOKENS, (checkpoint.config.max_positions // size - 1) * size)
    config = EngineConfig(requests, max(256, 8 * requests), kv_cache_tokens=requests * (tokens + size))
    engine = Engine(checkpoint, config, deps=EngineDeps(costs=costs))
    ids: list[int] = [threading.get_native_id()]
    worker = EngineWorker(engine, max_waiting=2 * requests)
    worker.start()
    clients = [asyncio.create_task(_ask(worker, place, params, tokens)) for place in range(requests)]
    try:
        await asyncio.sleep(_WARM_UP_S)
        ids += [one.native_id for one in threading.enumerate() if one.name == "engine" and one.native_id]
        return Delays.of(await _beats(seconds, ids))
    finally:
        for client in clients:
            client.cancel()
        await asyncio.gather(*clients, return_exceptions=True)
        worker.stop()


async def _ask(worker: EngineWorker, place: int, params: DecodingMode, tokens: int) -> None:
    """Requests of one place, without end."""
    number = 0
    while True:
        request = GenerationRequest(f"{place}-{number}", (place % 2,), params, max_new_tokens=tokens)
        async with aclosing(worker.generate(request)) as events:
            async for _ in events:
                pass
        number += 1


async def _beats(seconds: float, threads: Sequence[int]) -> list[float]:
    """How late each beat was, in seconds."""
    late = list[float]()
    end = time.perf_counter() + seconds
    while not late or time.perf_counter() < end:
        waited = _waited_for_core(threads)
        began = time.perf_counter()  # not earlier: to read a file waits for Python's lock, too
        await asyncio.sleep(_BEAT_S)
        more = time.perf_counter() - began - _BEAT_S
        late.append(max(0.0, more - _waited_for_core(threads) + waited))
    return late


def _waited_for_core(threads: Sequence[int]) -> float:
    """Seconds that the threads could have run, but had no core. 0 where Linux does not count it."""
    waited = 0
    for thread in threads:
        with suppress(OSError, IndexError):
            waited += int(Path(f"/proc/self/task/{thread}/schedstat").read_text("ascii").split()[1])
    return waited / 1e9
