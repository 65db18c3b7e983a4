"""Where the CPU time of a request goes: client, ingress, the replica's event loop, its engine, and the rest of Ray."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil

from loadtest.generator.workload import Json
from loadtest.harness import Running, ask, part_of

#: the parts of a request's way, in their order
PARTS = ("client", "proxy", "ingress", "replica: event loop", "engine", "Ray")
#: the parts that stand between the client and the replica
FRONT = ("proxy", "ingress")


@dataclass(frozen=True)
class CpuTime:
    """Milliseconds a request: `wall_ms` from first to last divided by all, and CPU time by part."""

    wall_ms: float
    cpu_ms: Mapping[str, float]

    def beyond(self, idle: Mapping[str, float]) -> Mapping[str, float]:
        """The CPU time without that which passes anyway, in milliseconds a second."""
        wall_s = self.wall_ms / 1e3
        return {part: max(0.0, cpu_ms - idle.get(part, 0.0) * wall_s) for part, cpu_ms in self.cpu_ms.items()}


async def cpu_time(running: Running, bodies: Sequence[Json], concurrency: int) -> CpuTime:
    waiting = list(bodies)
    limits = httpx.Limits(max_connections=concurrency)
    async with httpx.AsyncClient(base_url=running.url, timeout=300, limits=limits) as client:

        async def user() -> None:
            while waiting:
                outcome = await ask(client, waiting.pop())
                if not outcome.ok:
                    raise SystemExit(f"a request failed: {outcome.status} {outcome.error}")

        before, began = _cpu_s(running.pid), time.perf_counter()
        await asyncio.gather(*(user() for _ in range(concurrency)))
        wall, after = time.perf_counter() - began, _cpu_s(running.pid)
    return CpuTime(1e3 * wall / len(bodies), {part: 1e3 * (after[part] - before[part]) / len(bodies) for part in PARTS})


async def at_rest(running: Running, seconds: float) -> dict[str, float]:
    before, began = _cpu_s(running.pid), time.perf_counter()
    await asyncio.sleep(seconds)
    took, after = time.perf_counter() - began, _cpu_s(running.pid)
    return {part: 1e3 * (after[part] - before[part]) / took for part in PARTS if part != "client"}


def _cpu_s(program: int | None) -> dict[str, float]:
    seconds = dict.fromkeys(PARTS, 0.0)
    seconds["client"] = time.process_time()
    replica: list[float] = []
    for process in psutil.Process(program).children(recursive=True):
        try:
            part, threads = part_of(process.pid), _threads(process.pid)
        except (psutil.Error, OSError):  # it has ended
            continue
        if part == "replica":
            replica = sorted(threads.values(), reverse=True)
        else:
            seconds[part if part in seconds else "Ray"] += sum(threads.values())
    if replica:
        seconds["replica: event loop"] += replica.pop(0)
        seconds["Ray"] += sum(replica)
    return seconds


def _threads(process: int) -> dict[int, float]:
    tasks = Path(f"/proc/{process}/task").iterdir()
    return {int(task.name): int((task / "schedstat").read_text().split()[0]) / 1e9 for task in tasks}
