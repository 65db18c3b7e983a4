"""`python -m benchmarks.host`: the CPU time of a step beside its forwards, and how late an event loop is.

The loop runs beside an engine that decodes on another thread of the process. A timer of the loop asks to be woken
every few milliseconds. Its delay is mostly the time that the loop waited for Python's lock, for a garbage
collection, or for its own callbacks.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from contextlib import aclosing, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.machine import machine_name
from benchmarks.options import (
    Counter,
    ModelOptions,
    OutputOption,
    SeveralOption,
    results,
    run,
    table,
    use_threads,
    with_fields,
    write_rows,
)
from benchmarks.steps import HOST_COSTS, host_milliseconds
from service.decode.mode import DecodingMode
from service.engine import Engine, EngineConfig, EngineDeps, GenerationRequest
from service.engine.drafting.costs import StepCosts
from service.engine.streams import EngineOutput, RequestStreams
from service.engine.thread import EngineThread
from service.ipc.connections import tune_interpreter
from service.model import Checkpoint
from service.model.files import display_name
from service.quality.calibration.plans import parse_plan

#: seconds between two beats of the timer, and before the first one
_BEAT_S, _WARM_UP_S = 0.002, 1.0
_NEW_TOKENS = 512

_PLANS = [
    "static",
    "dynamic threshold=0.7",
    "sequential entropy_bound=0.1",
    "direct mrp_steps=2",
    "remask threshold=0.5",
    "speculative mrp_steps=2",
    "speculative mrp_steps=1 max_drafts=4",
    "speculative mrp_steps=auto",
]


@with_fields("options", ModelOptions)
def command(
    options: ModelOptions,
    concurrency: SeveralOption = [1, 8, 32, 128],  # noqa: B006
    plan: Annotated[list[str], typer.Option(help="A mode and its knobs; may be given again.")] = _PLANS,
    steps: Annotated[int, typer.Option(min=1, help="Steps of a measurement; the median is reported.")] = 22,
    seconds: Annotated[float, typer.Option(min=0, help="Seconds that the event loop is watched, for each plan.")] = 5,
    threads: Annotated[
        int,
        typer.Option(min=1, help="CPU threads for torch. With one, the times are CPU times of the engine's thread."),
    ] = 1,
    output: OutputOption = None,
) -> None:
    """Measures the host's time per request and step, and how late an event loop is beside the engine."""
    plans = {text: parse_plan(text) for text in plan}
    use_threads(threads)
    checkpoint = options.load()
    tune_interpreter()
    rows = list[dict[str, Any]]()
    with Counter(len(plans) * (len(concurrency) + bool(seconds))) as counter:
        for text, mode in plans.items():
            row: dict[str, Any] = {"plan": text, "machine": machine_name(checkpoint.device), "microseconds": {}}
            row["model"] = display_name(checkpoint.path)
            for requests in concurrency:
                milliseconds = host_milliseconds(checkpoint, requests, steps, mode)
                row["microseconds"][requests] = 1e3 * milliseconds / requests
                counter.next(f"{text}, {requests} together")
            if seconds:
                row["late_ms"] = asdict(loop_delays(checkpoint, max(concurrency), mode, seconds, HOST_COSTS))
                counter.next(f"{text}, event loop")
            rows.append(row)
    write_rows(output, rows)
    delays_table = table(
        "plan", *(f"µs, {count} together" for count in concurrency), "late ms: median", "99 %", "most", plan="plan"
    )
    for row in rows:
        late = row.get("late_ms", {})
        delays = [f"{late[name]:.1f}" if late else "" for name in ("median", "p99", "most")]
        delays_table.add_row(row["plan"], *(f"{time:.0f}" for time in row["microseconds"].values()), *delays)
    results().print(delays_table)


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
    def from_seconds(cls, seconds: Sequence[float]) -> Delays:
        """The delays of at least one beat."""
        late = sorted(1e3 * second for second in seconds)
        return cls(len(late), late[len(late) // 2], late[int(0.99 * (len(late) - 1))], late[-1])


def loop_delays(
    checkpoint: Checkpoint, requests: int, mode: DecodingMode, seconds: float, costs: StepCosts | None = None
) -> Delays:
    """While `requests` requests decode at once, one after another in each slot, with short prompts."""
    return asyncio.run(_measure(checkpoint, requests, mode, seconds, costs))


async def _measure(
    checkpoint: Checkpoint, requests: int, mode: DecodingMode, seconds: float, costs: StepCosts | None
) -> Delays:
    size = checkpoint.config.block_size
    tokens = min(_NEW_TOKENS, (checkpoint.config.max_positions // size - 1) * size)
    config = EngineConfig(requests, max(256, 8 * requests), kv_cache_tokens=requests * (tokens + size))
    engine = Engine(checkpoint, config, deps=EngineDeps(costs=costs))
    ids: list[int] = [threading.get_native_id()]
    loop = asyncio.get_running_loop()
    streams = RequestStreams(lambda request_id: worker.abort(request_id))  # noqa: PLW0108 - the worker comes after it

    def deliver(outputs: list[EngineOutput]) -> None:
        loop.call_soon_threadsafe(streams.deliver, outputs)

    worker = EngineThread(engine, deliver, max_waiting=2 * requests)
    worker.start()
    clients = [asyncio.create_task(_ask(worker, streams, slot, mode, tokens)) for slot in range(requests)]
    try:
        await asyncio.sleep(_WARM_UP_S)
        ids += [thread.native_id for thread in threading.enumerate() if thread.name == "engine" and thread.native_id]
        return Delays.from_seconds(await _beats(seconds, ids))
    finally:
        for client in clients:
            client.cancel()
        await asyncio.gather(*clients, return_exceptions=True)
        worker.stop()


async def _ask(worker: EngineThread, streams: RequestStreams, slot: int, mode: DecodingMode, tokens: int) -> None:
    """Requests of a slot, without end."""
    index = 0
    while True:
        request = GenerationRequest(f"{slot}-{index}", (slot % 2,), mode, max_new_tokens=tokens)
        async with aclosing(streams.open(request.request_id, partial(worker.submit, request))) as events:
            async for _ in events:
                pass
        index += 1


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


if __name__ == "__main__":
    run(command)
