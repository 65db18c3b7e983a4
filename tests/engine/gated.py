"""An engine on its thread, which waits before each step until the test opens its gate."""

import asyncio
import threading
from collections.abc import Callable

from service.engine import BlockEvent, BlockProgress, Engine, GenerationRequest
from service.errors import DeadlineExceeded
from service.settings import defaults
from tests.async_engine import AsyncEngine


class GatedEngine:
    """`gate`: set while steps are made. `step`: the engine's own step, which a test may replace."""

    def __init__(self, engine: Engine, max_waiting: int = defaults.MAX_WAITING) -> None:
        self.engine, self.thread = engine, AsyncEngine(engine, max_waiting)
        self.gate, self.num_steps, self.step = threading.Event(), 0, engine.step
        self._is_waiting = False
        engine.step = self._gated_step  # type: ignore[method-assign]
        self.thread.start()

    def _gated_step(self) -> list[BlockEvent]:
        self._is_waiting = True
        assert self.gate.wait(20)
        self.num_steps += 1
        return self.step()

    def generate(self, request: GenerationRequest) -> asyncio.Task[tuple[int, ...]]:
        """The answer's tokens. DeadlineExceeded if it is late."""
        return asyncio.ensure_future(self._tokens(request))

    async def _tokens(self, request: GenerationRequest) -> tuple[int, ...]:
        tokens: tuple[int, ...] = ()
        async for event in self.thread.generate(request):
            assert not isinstance(event, BlockProgress)
            tokens += event.token_ids
            if event.finish_reason == "timeout":
                raise DeadlineExceeded("in time")
        return tokens

    async def at_gate(self) -> None:
        """Waits until the engine has all submitted requests and waits before its next step."""
        with self.thread._changed:  # so that the engine takes all of them at once
            await asyncio.sleep(0)
        await eventually(lambda: self._is_waiting and not self.thread._inbox.submitted)

    async def steps(self, count: int) -> None:
        """Opens the gate, and waits until the engine has made so many more steps."""
        end = self.num_steps + count
        self.gate.set()
        await eventually(lambda: self.num_steps >= end or not self.engine.has_work)

    def close(self) -> None:
        self.gate.set()
        self.thread.stop()


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(120):
        while not condition():
            await asyncio.sleep(0.005)
