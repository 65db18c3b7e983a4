"""The engine's thread behind asyncio streams: requests, clients that leave, failures, shutdown."""

from __future__ import annotations

import asyncio
import random
import re
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing
from dataclasses import replace

import pytest

from service.decode.modes import Speculative
from service.engine import BlockEvent, Engine, EngineConfig, GenerationRequest
from service.errors import EngineFailed, InvalidRequest, MrpServeError, QueueFull, ReplicaLost, ReplicaStopping
from service.model import Checkpoint
from tests.async_engine import AsyncEngine
from tests.engine.helpers import Recorder, random_requests, request_of
from tests.tiny import tiny_checkpoint

PROMPT = (5, 6, 7, 8, 9, 10)
LONG = 200
#: what an error says that nobody foresaw
MARK = "xylophone"


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    return tiny_checkpoint(1)


class Gate:
    """Holds the engine before each step until it is opened; counts the steps."""

    def __init__(self, engine: Engine) -> None:
        self.open, self.steps, self.waiting, self._step = threading.Event(), 0, False, engine.step
        engine.step = self.step  # type: ignore[method-assign]

    async def holds(self, worker: AsyncEngine) -> None:
        """Waits until all that was submitted is in the engine, which waits here."""
        with worker._changed:  # so that the engine takes all of them at once
            await asyncio.sleep(0)
        await eventually(lambda: self.waiting and not worker._inbox.submitted)

    def step(self) -> list[BlockEvent]:
        self.waiting = True
        assert self.open.wait(20)
        self.steps += 1
        return self._step()


@pytest.fixture
def start(checkpoint: Checkpoint) -> Iterator[Callable[..., tuple[AsyncEngine, Engine]]]:
    """start(max_waiting=…, **limits) -> a running worker and its engine; stopped after the test."""
    workers = []

    def start(*, max_waiting: int = 64, observer: Recorder | None = None, **limits: int) -> tuple[AsyncEngine, Engine]:
        engine = Engine(checkpoint, EngineConfig(**limits), observer)
        worker = AsyncEngine(engine, max_waiting)
        worker.start()
        workers.append(worker)
        return worker, engine

    yield start
    for worker in workers:
        worker.stop()


async def collect(events: AsyncIterator[BlockEvent]) -> tuple[int, ...]:
    return tuple([token async for event in events for token in event.token_ids])


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.005)


def alone(checkpoint: Checkpoint, request: GenerationRequest) -> tuple[int, ...]:
    return Engine(checkpoint).generate([request])[0].token_ids


async def test_a_stream_is_what_the_engine_gives(checkpoint: Checkpoint, start: Callable) -> None:
    worker, _ = start()
    request = request_of("x", PROMPT, Speculative(2), tokens=14)
    events = [event async for event in worker.generate(request)]
    wanted = Engine(checkpoint).generate([request])[0]
    assert [event.token_ids for event in events] == [block.token_ids for block in wanted.blocks]
    assert [event.finish_reason for event in events] == [None, None, None, "length"]


async def test_outputs_delivered_together_are_the_same_in_fewer_deliveries(
    checkpoint: Checkpoint, start: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    generation, (worker, _) = request_of("a", PROMPT, tokens=5 * checkpoint.config.block_size), start()
    deliveries, deliver = list[int](), worker._streams.deliver
    monkeypatch.setattr(worker._streams, "deliver", lambda outputs: (deliveries.append(len(outputs)), deliver(outputs)))
    apart = [event async for event in worker.generate(generation)]
    assert deliveries == [1] * len(apart)
    deliveries.clear()
    together = [event async for event in worker.generate(replace(generation, together=3))]
    assert [event.token_ids for event in together] == [event.token_ids for event in apart]
    assert together[-1].finish_reason == "length"
    assert len(apart) > 3
    assert deliveries == [3] * (len(apart) // 3) + [len(apart) % 3] * (len(apart) % 3 > 0)


async def test_many_at_once(checkpoint: Checkpoint, start: Callable) -> None:
    worker, engine = start(max_running=16)
    requests = random_requests(random.Random(3), checkpoint, 30, longest=12)
    results = await asyncio.gather(*(collect(worker.generate(request)) for request in requests))
    assert results == [done.token_ids for done in Engine(checkpoint).generate(requests)]
    await eventually(lambda: worker.state().num_running == worker.state().kv_pages_used == 0)
    assert not engine.has_work


async def test_requests_are_decoded_together(start: Callable) -> None:
    recorder = Recorder()
    worker, engine = start(observer=recorder)
    gate = Gate(engine)
    tasks = [asyncio.ensure_future(collect(worker.generate(request_of(str(n), PROMPT)))) for n in range(6)]
    await gate.holds(worker)
    gate.open.set()
    await asyncio.gather(*tasks)
    assert max(report.state.num_running for report in recorder.reports) >= 5


class TestLeaving:
    async def test_closing_the_stream_frees_the_pages(self, start: Callable) -> None:
        recorder = Recorder()
        worker, engine = start(observer=recorder)
        async with aclosing(worker.generate(request_of("x", PROMPT, tokens=LONG))) as stream:
            await anext(stream)
            assert worker.state().kv_pages_used > 0
        await eventually(lambda: worker.state().kv_pages_used == 0)
        assert not engine.has_work
        assert recorder.events[-1].finish_reason == "abort"
        assert sum(len(event.token_ids) for event in recorder.events) < LONG

    async def test_cancelling_the_task_frees_the_pages(self, start: Callable) -> None:
        worker, engine = start()
        gate = Gate(engine)
        task = asyncio.ensure_future(collect(worker.generate(request_of("x", PROMPT, tokens=LONG))))
        await gate.holds(worker)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        gate.open.set()
        await eventually(lambda: not engine.has_work)
        await eventually(lambda: worker.state().kv_pages_used == worker.state().num_waiting == 0)
        assert gate.steps < 5

    async def test_others_do_not_notice(self, checkpoint: Checkpoint, start: Callable) -> None:
        worker, _ = start()
        stay = request_of("stay", PROMPT, Speculative(2), tokens=60)
        staying = asyncio.ensure_future(collect(worker.generate(stay)))
        for n in range(5):
            async with aclosing(worker.generate(request_of(str(n), PROMPT, tokens=LONG))) as stream:
                await anext(stream)
        assert await staying == alone(checkpoint, stay)

    async def test_an_id_is_in_use_until_the_engine_has_let_go(self, checkpoint: Checkpoint, start: Callable) -> None:
        """A second request of the same name must never get the first one's events or its abort."""
        worker, engine = start()
        gate = Gate(engine)
        first = asyncio.ensure_future(collect(worker.generate(request_of("x", PROMPT, tokens=LONG))))
        await gate.holds(worker)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        with pytest.raises(InvalidRequest, match="request id 'x' is in use"):
            await collect(worker.generate(request_of("x", PROMPT)))
        gate.open.set()
        await eventually(lambda: not engine.has_work)
        again = request_of("x", (1, 2, 3), tokens=12)
        assert await collect(worker.generate(again)) == alone(checkpoint, again)

    async def test_closing_after_the_end_aborts_nothing(self, start: Callable) -> None:
        recorder = Recorder()
        worker, _ = start(observer=recorder)
        stream = worker.generate(request_of("x", PROMPT))
        await collect(stream)
        await stream.aclose()
        await collect(worker.generate(request_of("x", PROMPT)))
        assert "abort" not in [event.finish_reason for event in recorder.events]


class TestRefusals:
    async def test_a_request_that_the_engine_can_never_serve_is_refused(self, start: Callable) -> None:
        worker, _ = start()
        with pytest.raises(InvalidRequest, match="the prompt is empty"):
            await collect(worker.generate(request_of("x", ())))
        assert worker.failure is None

    async def test_a_full_queue(self, start: Callable) -> None:
        worker, engine = start(max_waiting=3, max_running=1)
        gate = Gate(engine)
        names = iter("abcdefghij")
        tasks = [asyncio.ensure_future(collect(worker.generate(request_of(next(names), PROMPT))))]
        await gate.holds(worker)
        tasks += [asyncio.ensure_future(collect(worker.generate(request_of(next(names), PROMPT)))) for _ in range(3)]
        await eventually(lambda: len(worker._inbox.submitted) == 3)
        with pytest.raises(QueueFull, match="3 requests are waiting, allowed are 3") as caught:
            await collect(worker.generate(request_of(next(names), PROMPT)))
        assert caught.value.retry_after is not None
        gate.open.set()
        assert [len(tokens) for tokens in await asyncio.gather(*tasks)] == [8] * 4
        assert len(await collect(worker.generate(request_of("later", PROMPT)))) == 8

    async def test_a_full_queue_is_full_during_a_step(self, start: Callable) -> None:
        """Requests that the engine's thread has taken out of its inbox still count as waiting."""
        worker, engine = start(max_waiting=3, max_running=1)
        steps, entered, real = threading.Semaphore(0), threading.Semaphore(0), engine.step

        def step() -> list[BlockEvent]:
            entered.release()
            assert steps.acquire(timeout=20)
            return real()

        engine.step = step  # type: ignore[method-assign]
        tasks = [asyncio.ensure_future(collect(worker.generate(request_of("a", PROMPT))))]
        assert await asyncio.to_thread(entered.acquire, timeout=20)
        tasks += [asyncio.ensure_future(collect(worker.generate(request_of(name, PROMPT)))) for name in "bcd"]
        await asyncio.sleep(0)
        steps.release()  # a's first; b, c and d are in the engine by the second
        assert await asyncio.to_thread(entered.acquire, timeout=20)
        with pytest.raises(QueueFull, match="3 requests are waiting, allowed are 3"):
            await collect(worker.generate(request_of("e", PROMPT)))
        steps.release(1000)
        assert [len(tokens) for tokens in await asyncio.gather(*tasks)] == [8] * 4

    async def test_an_id_in_use(self, start: Callable) -> None:
        worker, engine = start()
        gate = Gate(engine)
        task = asyncio.ensure_future(collect(worker.generate(request_of("x", PROMPT))))
        await gate.holds(worker)
        with pytest.raises(InvalidRequest, match="request id 'x' is in use"):
            await collect(worker.generate(request_of("x", PROMPT)))
        gate.open.set()
        assert len(await task) == 8


class TestFailure:
    async def test_all_streams_fail_with_the_reason_and_it_stays_failed(
        self, start: Callable, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The reason has the error's type and place. The message may quote a prompt, and `/health` is public."""
        worker, engine = start()
        gate = Gate(engine)

        def explode() -> list[BlockEvent]:
            raise RuntimeError(f"cannot decode {MARK}")

        tasks = [asyncio.ensure_future(collect(worker.generate(request_of(str(n), PROMPT)))) for n in range(3)]
        await gate.holds(worker)
        assert worker.failure is None
        gate._step = explode
        gate.open.set()
        errors = await asyncio.gather(*tasks, return_exceptions=True)
        origin = rf"RuntimeError in {re.escape(__name__)}, line {explode.__code__.co_firstlineno + 1}"
        assert re.fullmatch(origin, str(worker.failure))
        assert [str(error) for error in errors] == [f"the engine stopped: {worker.failure}"] * 3
        assert all(isinstance(error, EngineFailed) for error in errors)
        assert len({id(error) for error in errors}) == 3
        with pytest.raises(ReplicaStopping, match=f"the engine stopped: {origin}"):
            await collect(worker.generate(request_of("late", PROMPT)))
        (record,) = [record for record in caplog.records if record.message == "the engine stopped"]
        assert "test_worker.py" in record.exception  # type: ignore[attr-defined]
        assert MARK not in caplog.text + record.exception  # type: ignore[attr-defined]

    async def test_a_process_that_the_engine_needs_is_lost_and_no_request_is_to_blame(self, start: Callable) -> None:
        worker, engine = start()
        gate = Gate(engine)

        def lose() -> list[BlockEvent]:
            raise ReplicaLost("rank 1 has ended")

        tasks = [asyncio.ensure_future(collect(worker.generate(request_of(str(n), PROMPT)))) for n in range(2)]
        await gate.holds(worker)
        gate._step = lose
        gate.open.set()
        errors = await asyncio.gather(*tasks, return_exceptions=True)
        assert [(type(error), str(error)) for error in errors] == [(ReplicaLost, "rank 1 has ended")] * 2
        assert worker.failure == "rank 1 has ended"

    async def test_a_client_that_left_before_the_failure_is_no_trouble(self, start: Callable) -> None:
        worker, engine = start()
        gate = Gate(engine)
        task = asyncio.ensure_future(collect(worker.generate(request_of("x", PROMPT))))
        await gate.holds(worker)
        gate._step = lambda: 1 // 0  # type: ignore[assignment, return-value]
        task.cancel()
        gate.open.set()
        await asyncio.gather(task, return_exceptions=True)
        await eventually(lambda: worker.failure is not None)
        assert "ZeroDivisionError" in str(worker.failure)

    def test_a_worker_that_was_not_started_is_not_healthy(self, checkpoint: Checkpoint) -> None:
        assert AsyncEngine(Engine(checkpoint)).failure == "the engine's thread is not running"


class TestStopping:
    async def test_streams_in_flight_are_told_to_go_elsewhere(self, start: Callable) -> None:
        worker, engine = start()
        gate = Gate(engine)
        tasks = [
            asyncio.ensure_future(collect(worker.generate(request_of(str(n), PROMPT, tokens=LONG)))) for n in range(3)
        ]
        await gate.holds(worker)
        stopping = asyncio.get_running_loop().run_in_executor(None, worker.stop)
        await eventually(lambda: worker._stopping)
        with pytest.raises(ReplicaStopping, match="shutting down"):
            await collect(worker.generate(request_of("late", PROMPT)))
        gate.open.set()
        await stopping
        errors = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(error) for error in errors] == [ReplicaStopping] * 3
        assert all(isinstance(error, MrpServeError) and error.status == 503 for error in errors)
        assert gate.steps == 1
        assert worker.failure is None

    async def test_a_step_that_hangs_does_not_keep_the_worker_from_stopping(self, start: Callable) -> None:
        worker, engine = start()
        gate = Gate(engine)
        task = asyncio.ensure_future(collect(worker.generate(request_of("x", PROMPT))))
        await gate.holds(worker)
        await asyncio.to_thread(worker.stop, 0.01)
        assert worker._thread.is_alive()
        gate.open.set()
        with pytest.raises(ReplicaStopping):
            await task

    def test_an_idle_worker_stops_at_once_and_twice_is_fine(self, start: Callable) -> None:
        worker, _ = start()
        worker.stop()
        assert not worker._thread.is_alive()
        worker.stop()

    async def test_an_idle_worker_sleeps(self, start: Callable) -> None:
        worker, engine = start()
        gate = Gate(engine)
        gate.open.set()
        await collect(worker.generate(request_of("x", PROMPT)))
        steps = gate.steps
        await asyncio.sleep(0.1)
        assert gate.steps == steps
        assert worker.state() == engine.state()
