"""Stage 5: the whole service over HTTP: Ray Serve, ingress, replica and engine, with the demo at a published size.

It needs the packages of the service and of its load tests. Prefixes are not cached, so a later plan has no less to
compute. By the times of 2026-11-27 an H100 needs about two minutes until the loads, then 18 s for each plan at each
load. Three plans at four loads are 5.6 minutes, all six plans 9.2. That is an estimate.
"""

import argparse
import asyncio
import itertools
import math
import os
import shutil
import signal
import time
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import aiohttp
import torch

from benchmarks.gpu.rows import GPU_SHAPES, Extent, Rows
from benchmarks.inflated import inflate
from loadtest.chaos.overload import ask
from loadtest.generator.protocol import Observation
from loadtest.generator.workload import DEFAULT_MODE, Lengths, Plan, Workload, heldout_prompts, plans
from loadtest.harness import Running, percentile, processes, service
from service.model import LoadOptions, parse_config, read_config, save_checkpoint
from service.quality.presets import identity_of
from service.quality.schema import FILE_NAME, read_quality, write_quality

#: requests whose answers by `speculative` are compared with those by `static`
PAIRS = 48
_STATIC, _SPECULATIVE = plans("static,speculative@mrp_steps=3")
_TEMPERATURES = (0.0, 0.7, 1.0)
#: requests without a mode
_DEFAULT = plans(DEFAULT_MODE)[0]
#: seconds until a refused user asks again
_PAUSE_S = 0.2


def measure_service(rows: Rows, device: torch.device, dtype: torch.dtype, extent: Extent) -> None:
    """For each shape: the start, the comparison of answers, a killed engine, then each plan at each load."""
    for shape in extent.shapes:
        with TemporaryDirectory() as name:
            folder = Path(name)
            options = LoadOptions(dtype, str(device))
            rows.part(f"checkpoint of {shape}", partial(_save, folder, extent.model, shape, options))
            dtype_name = str(dtype).removeprefix("torch.")
            flags = ["--model", folder, "--device", device, "--dtype", dtype_name, "--no-enable-prefix-caching"]
            rows.part(f"service with {shape}", partial(_serve, rows, shape, [*flags, *extent.flags.split()], extent))


def _save(folder: Path, model: Path, shape: str, options: LoadOptions) -> None:
    """Writes the inflated checkpoint. The presets are those of the small one, as they were calibrated elsewhere."""
    checkpoint = inflate(model, GPU_SHAPES[shape], options)
    save_checkpoint(folder, checkpoint.raw, checkpoint.backbone, checkpoint.mrp)
    for file in (*checkpoint.path.glob("tokenizer*"), *checkpoint.path.glob("*.jinja")):
        shutil.copy(file, folder)
    if (checkpoint.path / FILE_NAME).is_file():
        identity = identity_of(folder, parse_config(read_config(folder)))
        calibration = read_quality(checkpoint.path / FILE_NAME)
        write_quality(calibration.model_copy(update={"checkpoint": identity}), folder / FILE_NAME)


def _serve(rows: Rows, shape: str, flags: list[Any], extent: Extent) -> None:
    try:
        asyncio.run(_measure(rows, shape, flags, extent))
    except SystemExit as error:  # as scripts end whose service does
        raise RuntimeError(*error.args) from error


async def _measure(rows: Rows, shape: str, flags: list[Any], extent: Extent) -> None:
    chosen, began = plans(extent.plans), time.monotonic()
    limits, timeout = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(total=extent.wait_s)
    async with AsyncExitStack() as stack:
        async with asyncio.timeout(extent.wait_s):
            running = await stack.enter_async_context(service(argparse.Namespace(url=None, flags=""), *flags))
        session = aiohttp.ClientSession(running.url, connector=limits, timeout=timeout)
        users = _Users(await stack.enter_async_context(session), extent)
        rows.write("start", shape=shape, seconds=(await users.answer()).ended - began)
        right, promised = await users.right(), "--deterministic" in flags
        rows.failed |= promised and right < PAIRS
        rows.write("answers", shape=shape, plan=_SPECULATIVE.label, right=right, of=PAIRS, promised=promised)
        if not rows.over(f"a killed engine of {shape}"):
            rows.write("killed", shape=shape, **await users.killed(running))
        for plan, count in itertools.product(chosen, extent.concurrency):
            if not rows.over(f"service with {shape}, {plan.label}, {count} users"):
                for row in await users.at_load(plan, count):
                    rows.failed |= row["failed"] > 0
                    rows.write("users", shape=shape, plan=plan.label, users=count, **row)


class _Users:
    """Clients in closed loops: each asks, waits for the whole answer and asks again."""

    def __init__(self, session: aiohttp.ClientSession, extent: Extent) -> None:
        self._session, self._extent, self._prompts = session, extent, heldout_prompts()

    async def answer(self) -> Observation:
        """Asks until there is an answer. TimeoutError after `wait_s`."""
        async with asyncio.timeout(self._extent.wait_s):
            while not (seen := await ask(self._session, self._body(_DEFAULT, 0, "alone"))).ok:
                await asyncio.sleep(_PAUSE_S)
        return seen

    async def right(self) -> int:
        """The number of answers by `speculative` that are those by `static`, all asked at once."""
        return sum(await asyncio.gather(*map(self._is_right, range(PAIRS))))

    async def _is_right(self, number: int) -> bool:
        sampled = {"temperature": _TEMPERATURES[number % len(_TEMPERATURES)]}
        bodies = [self._body(plan, number, "pair") | sampled for plan in (_STATIC, _SPECULATIVE)]
        static, drafted = [await ask(self._session, body) for body in bodies]
        return static.ok and drafted.ok and static.token_ids == drafted.token_ids

    async def killed(self, running: Running) -> dict[str, Any]:
        """Kills the engine's process under load. `seconds`: until an answer to a request that was sent later."""
        seen, count = list[Observation](), self._extent.together
        load = asyncio.create_task(self._load(_DEFAULT, count, math.inf, seen))
        await asyncio.sleep(self._extent.learn_s)
        engine, *_ = processes(running, "engine")
        os.kill(engine, signal.SIGKILL)
        at = time.monotonic()
        again = (await self.answer()).ended
        load.cancel()
        await asyncio.wait([load])
        return {"users": count, "seconds": again - at, **_row(seen, at, again)}

    async def at_load(self, plan: Plan, count: int) -> list[dict[str, Any]]:
        """The first `learn_s` seconds, in which the service learns, apart from the `steady_s` after them."""
        learnt = time.monotonic() + self._extent.learn_s
        seen, since, until = list[Observation](), time.monotonic(), learnt + self._extent.steady_s
        await self._load(plan, count, until, seen)
        return [{"part": "learning", **_row(seen, since, learnt)}, {"part": "steady", **_row(seen, learnt, until)}]

    async def _load(self, plan: Plan, count: int, until: float, seen: list[Observation]) -> None:
        async def user(source: str) -> None:
            for number in itertools.count():
                if time.monotonic() >= until:
                    return
                seen.append(await ask(self._session, self._body(plan, number, source)))
                if not seen[-1].ok:
                    await asyncio.sleep(_PAUSE_S)

        await asyncio.gather(*(user(f"{number}") for number in range(count)))

    def _body(self, plan: Plan, number: int, source: str) -> dict[str, Any]:
        lengths = Lengths("fixed", self._extent.new_tokens)
        return Workload(self._prompts, (plan,), lengths).request(number, source).body


def _row(seen: list[Observation], since: float, until: float) -> dict[str, Any]:
    """The answers that ended in a span of time."""
    ended = [outcome for outcome in seen if since <= outcome.ended < until]
    answered = [outcome for outcome in ended if outcome.ok]
    times = [1e3 * outcome.total_s for outcome in answered]
    return {
        "answers": len(answered),
        "failed": len(ended) - len(answered),
        "errors": sorted({f"{outcome.status} {outcome.error}"[:200] for outcome in ended if not outcome.ok})[:3],
        "tokens_per_s": sum(outcome.tokens for outcome in answered) / (until - since),
        "p50_ms": percentile(times, 0.5),
        "p95_ms": percentile(times, 0.95),
    }
