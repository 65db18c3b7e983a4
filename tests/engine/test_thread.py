"""The engine's thread behind asyncio streams: requests, clients that leave, failures, shutdown."""

import asyncio
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import aclosing
from dataclasses import replace

import pytest

from service.decode.modes import Speculative
from service.engine import BlockEvent, Engine, EngineConfig, GenerationRequest
from service.errors import EngineFailed, InvalidRequest, MrpServeError, QueueFull, ReplicaLost, ReplicaStopping
from service.model import Checkpoint
from tests.async_engine import AsyncEngine
from tests.engine.gated import GatedEngine, eventually
from tests.engine.helpers import Recorder, request_of

PROMPT = (5, 6, 7, 8, 9, 10)
LONG = 200
#: the text of an unexpected error, which might quote a prompt
MARK = "xylophone"

Start = Callable[..., GatedEngine]


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def start(checkpoint: Checkpoint, recorder: Recorder) -> Iterator[Start]:
    """start(max_waiting=…, is_open=…, **limits) -> an engine on its thread; stopped after the test."""
    engines: list[GatedEngine] = []

    def start(*, max_waiting: int = 64, is_open: bool = True, **limits: int) -> GatedEngine:
        gated = GatedEngine(Engine(checkpoint, EngineConfig(**limits), recorder), max_waiting)
        if is_open:
            gated.gate.set()
        engines.append(gated)
        return gated

    yield start
    for gated in engines:
        gated.close()


def alone(checkpoint: Checkpoint, request: GenerationRequest) -> tuple[int, ...]:
    return Engine(checkpoint).generate([request])[0].token_ids


async def test_a_stream_has_the_engines_events(checkpoint: Checkpoint, start: Start) -> None:
    request = request_of("x", PROMPT, Speculative(2), tokens=14)
    events = [event async for event in start().thread.generate(request)]
    wanted = Engine(checkpoint).generate([request])[0]
    assert [event.token_ids for event in events] == [block.token_ids for block in wanted.blocks]
    assert [event.finish_reason for event in events] == [None, None, None, "length"]


async def test_outputs_delivered_together_are_the_same_in_fewer_deliveries(
    checkpoint: Checkpoint, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    request, thread = request_of("a", PROMPT, tokens=5 * checkpoint.config.block_size), start().thread
    deliveries, deliver = list[int](), thread._streams.deliver
    monkeypatch.setattr(thread._streams, "deliver", lambda outputs: (deliveries.append(len(outputs)), deliver(outputs)))
    apart = [event async for event in thread.generate(request)]
    assert deliveries == [1] * len(apart)
    deliveries.clear()
    together = [event async for event in thread.generate(replace(request, stream_interval=3))]
    assert [event.token_ids for event in together] == [event.token_ids for event in apart]
    assert together[-1].finish_reason == "length"
    assert len(apart) > 3
    assert deliveries == [3] * (len(apart) // 3) + [len(apart) % 3] * (len(apart) % 3 > 0)


class TestLeaving:
    async def test_closing_the_stream_frees_the_pages(self, start: Start, recorder: Recorder) -> None:
        gated = start()
        async with aclosing(gated.thread.generate(request_of("x", PROMPT, tokens=LONG))) as stream:
            await anext(stream)
            assert gated.thread.state().kv_pages_used > 0
        await eventually(lambda: gated.thread.state().kv_pages_used == 0)
        assert not gated.engine.has_work
        assert recorder.events[-1].finish_reason == "abort"
        assert sum(len(event.token_ids) for event in recorder.events) < LONG

    async def test_other_requests_do_not_notice(self, checkpoint: Checkpoint, start: Start) -> None:
        gated, stay = start(), request_of("stay", PROMPT, Speculative(2), tokens=60)
        staying = gated.generate(stay)
        for n in range(5):
            async with aclosing(gated.thread.generate(request_of(str(n), PROMPT, tokens=LONG))) as stream:
                await anext(stream)
        assert await staying == alone(checkpoint, stay)

    async def test_an_id_is_in_use_until_the_engine_has_removed_the_request(
        self, checkpoint: Checkpoint, start: Start
    ) -> None:
        """A second request of the same name must never get the first one's events or its abort."""
        gated = start(is_open=False)
        first = gated.generate(request_of("x", PROMPT, tokens=LONG))
        await gated.at_gate()
        with pytest.raises(InvalidRequest, match="request id 'x' is in use"):
            await gated.generate(request_of("x", PROMPT))
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        with pytest.raises(InvalidRequest, match="request id 'x' is in use"):
            await gated.generate(request_of("x", PROMPT))
        gated.gate.set()
        await eventually(lambda: not gated.engine.has_work)
        again = request_of("x", (1, 2, 3), tokens=12)
        assert await gated.generate(again) == alone(checkpoint, again)

    async def test_closing_after_the_end_aborts_nothing(self, start: Start, recorder: Recorder) -> None:
        gated = start()
        stream = gated.thread.generate(request_of("x", PROMPT))
        async for _ in stream:
            pass
        await stream.aclose()
        await gated.generate(request_of("x", PROMPT))
        assert "abort" not in [event.finish_reason for event in recorder.events]


class TestRefusals:
    async def test_a_full_queue(self, start: Start) -> None:
        gated = start(is_open=False, max_waiting=3, max_running=1)
        tasks = [gated.generate(request_of("a", PROMPT))]
        await gated.at_gate()
        tasks += [gated.generate(request_of(name, PROMPT)) for name in "bcd"]
        await eventually(lambda: len(gated.thread._inbox.submitted) == 3)
        with pytest.raises(QueueFull, match="3 requests are waiting, allowed are 3") as caught:
            await gated.generate(request_of("e", PROMPT))
        assert caught.value.retry_after is not None
        gated.gate.set()
        assert [len(tokens) for tokens in await asyncio.gather(*tasks)] == [8] * 4
        assert len(await gated.generate(request_of("later", PROMPT))) == 8

    async def test_requests_out_of_the_inbox_count_as_waiting_during_a_step(self, start: Start) -> None:
        gated = start(max_waiting=3, max_running=1)
        steps, entered, real = threading.Semaphore(0), threading.Semaphore(0), gated.step

        def step() -> list[BlockEvent]:
            entered.release()
            assert steps.acquire(timeout=120)
            return real()

        gated.step = step
        tasks = [gated.generate(request_of("a", PROMPT))]
        assert await asyncio.to_thread(entered.acquire, timeout=120)
        tasks += [gated.generate(request_of(name, PROMPT)) for name in "bcd"]
        await asyncio.sleep(0)
        steps.release()  # a's first; b, c and d are in the engine by the second
        assert await asyncio.to_thread(entered.acquire, timeout=120)
        with pytest.raises(QueueFull, match="3 requests are waiting, allowed are 3"):
            await gated.generate(request_of("e", PROMPT))
        steps.release(1000)
        assert [len(tokens) for tokens in await asyncio.gather(*tasks)] == [8] * 4


class TestFailure:
    async def test_all_streams_fail_with_the_reason_and_it_stays_failed(
        self, start: Start, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The reason has the error's type and line. The message may quote a prompt, and `/health` is public."""
        gated = start(is_open=False)

        def explode() -> list[BlockEvent]:
            raise RuntimeError(f"cannot decode {MARK}")

        tasks = [gated.generate(request_of(str(n), PROMPT)) for n in range(3)]
        await gated.at_gate()
        assert gated.thread.failure is None
        gated.step = explode
        tasks.pop().cancel()  # a client that leaves before the failure
        gated.gate.set()
        errors = await asyncio.gather(*tasks, return_exceptions=True)
        origin = rf"RuntimeError in {re.escape(__name__)}, line {explode.__code__.co_firstlineno + 1}"
        assert re.fullmatch(origin, str(gated.thread.failure))
        assert [str(error) for error in errors] == [f"the engine stopped: {gated.thread.failure}"] * 2
        assert all(isinstance(error, EngineFailed) for error in errors)
        assert len({id(error) for error in errors}) == 2
        with pytest.raises(ReplicaStopping, match=f"the engine stopped: {origin}"):
            await gated.generate(request_of("late", PROMPT))
        (record,) = [record for record in caplog.records if record.message == "the engine stopped"]
        assert "test_thread.py" in record.exception  # type: ignore[attr-defined]
        assert MARK not in caplog.text + record.exception  # type: ignore[attr-defined]

    async def test_a_lost_rank_is_the_fault_of_no_request(self, start: Start) -> None:
        gated = start(is_open=False)

        def lose() -> list[BlockEvent]:
            raise ReplicaLost("rank 1 has ended")

        tasks = [gated.generate(request_of(str(n), PROMPT)) for n in range(2)]
        await gated.at_gate()
        gated.step = lose
        gated.gate.set()
        errors = await asyncio.gather(*tasks, return_exceptions=True)
        assert [(type(error), str(error)) for error in errors] == [(ReplicaLost, "rank 1 has ended")] * 2
        assert gated.thread.failure == "rank 1 has ended"

    def test_a_thread_that_was_not_started_is_not_healthy(self, checkpoint: Checkpoint) -> None:
        assert AsyncEngine(Engine(checkpoint)).failure == "the engine's thread is not running"


class TestStopping:
    async def test_requests_in_progress_fail_with_503(self, start: Start) -> None:
        gated = start(is_open=False)
        tasks = [gated.generate(request_of(str(n), PROMPT, tokens=LONG)) for n in range(3)]
        await gated.at_gate()
        await asyncio.to_thread(gated.thread.stop, 0.01)  # a step that hangs does not hold it up
        assert gated.thread._thread.is_alive()
        with pytest.raises(ReplicaStopping, match="shutting down"):
            await gated.generate(request_of("late", PROMPT))
        gated.gate.set()
        errors = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(error) for error in errors] == [ReplicaStopping] * 3
        assert all(isinstance(error, MrpServeError) and error.status == 503 for error in errors)
        assert gated.num_steps == 1
        assert gated.thread.failure is None

    def test_an_idle_thread_stops_at_once_and_may_be_stopped_twice(self, start: Start) -> None:
        thread = start().thread
        thread.stop()
        assert not thread._thread.is_alive()
        thread.stop()

    async def test_an_idle_thread_sleeps(self, start: Start) -> None:
        gated = start()
        await gated.generate(request_of("x", PROMPT))
        steps = gated.num_steps
        await asyncio.sleep(0.1)
        assert gated.num_steps == steps
        assert gated.thread.state() == gated.engine.state()
