"""A simulated engine that computes nothing: requests advance by a table of measured step times.

It does continuous batching as the real engine: up to `max_running` requests share every step, waiting requests join
between two steps, and the time of a step depends on its rows. The simulation sleeps until the next event for a request,
so a second of decoding costs almost no CPU. Simulated time does not depend on how busy the process is, as on a separate
device. An event that was due while the process was busy is reported late, but with its simulated time.
"""

from __future__ import annotations

import asyncio
import bisect
import json
import math
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

_ROUNDING = 1e-9


@dataclass(frozen=True)
class Speed:
    """The speed of a replica.

    `steps`: (rows, milliseconds of a backbone forward, of an MRP forward) in order. In a step, every request has `rows`
    rows, gets `tokens_per_forward` tokens and needs `mrp_steps` MRP forwards. `slowdown`: factor on the measured times.
    """

    steps: Sequence[tuple[int, float, float]]
    rows: int
    mrp_steps: int
    tokens_per_forward: float
    slowdown: float = 1.0
    block_size: int = 4

    def step_s(self, running: int) -> float:
        """Seconds of a step with `running` requests. Linear between and beyond the measured rows."""
        backbone, mrp = self._at(self.rows * running, 1), self.mrp_steps * self._at(running, 2)
        return self.slowdown * (backbone + mrp) / 1e3

    def tokens_per_second(self, running: int) -> float:
        """Tokens per second of `running` requests together."""
        return running * self.tokens_per_forward / self.step_s(running)

    def steps_for(self, tokens: float) -> int:
        """The steps of a request for `tokens` tokens."""
        return max(0, math.ceil(tokens / self.tokens_per_forward - _ROUNDING))

    def save(self, path: Path) -> None:
        """Writes the values as JSON."""
        path.write_text(json.dumps(asdict(self)), "utf-8")

    @classmethod
    def load(cls, path: Path) -> Speed:
        """Reads a file of `save`."""
        return cls(**json.loads(path.read_text("utf-8")))

    def _at(self, rows: int, column: int) -> float:
        after = min(max(1, bisect.bisect_left(self.steps, rows, key=lambda step: step[0])), len(self.steps) - 1)
        low, high = self.steps[after - 1], self.steps[after]
        part = (rows - low[0]) / (high[0] - low[0])
        return low[column] + part * (high[column] - low[column])


@dataclass(eq=False)
class Job:
    """One request. `every`: tokens between two events for it. Times are the engine's."""

    tokens: int
    every: int
    came: float
    began: float | None = None
    steps: int = 0
    told: int = 0
    news: asyncio.Queue[tuple[int, float]] = field(default_factory=asyncio.Queue)

    @property
    def due(self) -> int:
        """The tokens at the next event."""
        return min(self.tokens, self.told + self.every)


class ClockEngine:
    """The engine. A job runs as long as its generator is open. `tokens`: decoded since the start, of all jobs."""

    def __init__(self, speed: Speed, max_running: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.speed = speed
        self._max_running = max_running
        self._clock = clock
        self.running: list[Job] = []
        self.waiting: deque[Job] = deque()
        self.tokens = 0.0
        self._at = clock()
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def decode(self, tokens: int, every: int) -> AsyncGenerator[tuple[Job, int, float]]:
        """Yields the job after every `every` tokens and at its end, with its tokens and the time of the event."""
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        job = Job(tokens, every, self._clock())
        self.waiting.append(job)
        self._changed.set()
        try:
            while True:
                told, at = await job.news.get()
                yield job, told, at
                if told == tokens:
                    return
        finally:
            self._forget(job)

    def advance(self) -> None:
        """Makes all steps that have ended by now."""
        now = self._clock()
        while True:
            self._admit()
            if not self.running:
                if not self.waiting:
                    return
                self._at = self.waiting[0].came
                continue
            step = self.speed.step_s(len(self.running))
            count = min(self._steps_to_news(step), math.floor((now - self._at) / step + _ROUNDING))
            if count <= 0:
                return
            self._take(count, step)

    def _admit(self) -> None:
        while self.waiting and len(self.running) < self._max_running and self.waiting[0].came <= self._at + _ROUNDING:
            job = self.waiting.popleft()
            job.began = self._at
            self.running.append(job)

    def _steps_to_news(self, step: float) -> int:
        """The number of steps until the next event, or until a waiting request joins."""
        speed = self.speed
        count = min(speed.steps_for(job.due) - job.steps for job in self.running)
        if self.waiting and len(self.running) < self._max_running:
            count = min(count, math.ceil((self.waiting[0].came - self._at) / step - _ROUNDING))
        return max(1, count)

    def _take(self, count: int, step: float) -> None:
        self._at += count * step
        self.tokens += count * self.speed.tokens_per_forward * len(self.running)
        for job in tuple(self.running):
            job.steps += count
            while job.told < job.tokens and job.steps >= self.speed.steps_for(job.due):
                job.told = job.due
                job.news.put_nowait((job.told, self._at))
            if job.told == job.tokens:
                self.running.remove(job)

    async def _run(self) -> None:
        while True:
            self._changed.clear()
            self.advance()
            wait_s = None
            if self.running:
                step = self.speed.step_s(len(self.running))
                wait_s = max(0.0, self._at + self._steps_to_news(step) * step - self._clock())
            try:
                async with asyncio.timeout(wait_s):
                    await self._changed.wait()
            except TimeoutError:
                continue

    def _forget(self, job: Job) -> None:
        if job in self.running:
            self.running.remove(job)
        if job in self.waiting:
            self.waiting.remove(job)
