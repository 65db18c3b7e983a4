"""An engine that is paused or asleep: the same tokens afterwards, to the bit, and nothing is lost meanwhile."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from service.decode.modes import Static
from service.engine import BlockEvent, Engine, EngineConfig, EngineDeps, GenerationRequest
from service.engine import thread as thread_module
from service.errors import DeadlineExceeded, MrpServeError, OutOfMemory, ReplicaStopping
from service.model import LoadOptions, load_checkpoint
from service.model.attention import PagedCache
from service.replica.core import EngineCore
from service.replica.messages import SetGeneration
from service.settings.settings import Settings
from tests.async_engine import AsyncEngine
from tests.engine.helpers import ALL_MODES, FAIR, Recorder, request_of
from tests.engine.test_golden import expected, requests
from tests.engine.test_worker import Gate, eventually
from tests.thinned import fast_only
from tests.tiny import EXPERTS_NAME, GOLDEN, GOLDEN_NAMES, LLADA2_NAME

NAMES = (*GOLDEN_NAMES, EXPERTS_NAME, LLADA2_NAME)
PROMPT = tuple(range(1, 20))


class Sleeper:
    """A core whose engine runs on its thread. `change` does what the routes order."""

    def __init__(self, model: Path, **settings: object) -> None:
        self.settings = Settings(model=str(model), device="cpu", dtype="float32", kv_cache_tokens=4096, **settings)  # type: ignore[arg-type]
        checkpoint = load_checkpoint(model, LoadOptions(quantization=self.settings.quantization))
        self.seen = Recorder()
        self.core = EngineCore(checkpoint, self.settings, self.seen, EngineDeps(costs=FAIR))
        self.engine = self.core.engine
        self.thread, self.gate = AsyncEngine(self.engine), Gate(self.engine)
        self.thread.start()

    async def change(self, *, paused: bool = False, level: int = 0, wait: bool = False) -> None:
        await self.core.set_generation(self.thread, SetGeneration(paused, level, wait, (self.settings.model,)))

    def ask(self, request: GenerationRequest) -> asyncio.Task[tuple[int, ...]]:
        return asyncio.ensure_future(self._collect(request))

    async def _collect(self, request: GenerationRequest) -> tuple[int, ...]:
        tokens: tuple[int, ...] = ()
        async for event in self.thread.generate(request):
            assert isinstance(event, BlockEvent)
            tokens += event.token_ids
            if event.finish_reason == "timeout":
                raise DeadlineExceeded("in time")
        return tokens

    async def steps(self, count: int) -> None:
        """Lets so many more steps go by."""
        end = self.gate.steps + count
        self.gate.open.set()
        await eventually(lambda: self.gate.steps >= end or not self.engine.has_work)

    def close(self) -> None:
        self.gate.open.set()
        self.thread.stop()
        self.core.close()


@pytest.fixture
def sleepers() -> Iterator[list[Sleeper]]:
    made: list[Sleeper] = []
    yield made
    for sleeper in made:
        sleeper.close()


@pytest.mark.parametrize("overlap", fast_only("off".__eq__, ["off", "on"]))
@pytest.mark.parametrize("name", NAMES)
async def test_golden_requests_that_are_paused_have_the_same_tokens(
    sleepers: list[Sleeper], name: str, overlap: str
) -> None:
    """In the middle of every mode, many times; some pauses let the running requests finish."""
    sleeper = Sleeper(GOLDEN / name, overlap=overlap)
    sleepers.append(sleeper)
    answers = [sleeper.ask(request) for request in requests(name)]
    await sleeper.gate.holds(sleeper.thread)
    for turn in range(12):
        await sleeper.steps(1 + turn % 3)
        wait = turn % 6 == 5
        await sleeper.change(paused=True, wait=wait)
        before, state = sleeper.gate.steps, sleeper.engine.state()
        assert not (wait and state.num_running)
        await asyncio.sleep(0.02)
        assert sleeper.gate.steps == before
        assert sleeper.thread.state() == state
        assert state.paused
        await sleeper.change()
    assert [list(tokens) for tokens in await asyncio.gather(*answers)] == [
        entry["token_ids"] for entry in expected(name)
    ]
    assert sleeper.engine.state().kv_pages_used == 0


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("level", [1, 2])
async def test_golden_requests_after_sleep_have_the_same_tokens(sleepers: list[Sleeper], name: str, level: int) -> None:
    """Running requests finish first, waiting ones stay in the queue. No key or value is left from before."""
    sleeper = Sleeper(GOLDEN / name)
    sleepers.append(sleeper)
    generations = requests(name)
    half = len(generations) // 2
    before = [sleeper.ask(request) for request in generations[:half]]
    await sleeper.gate.holds(sleeper.thread)
    await sleeper.steps(3)
    sleep = asyncio.ensure_future(sleeper.change(level=level))
    await eventually(lambda: sleeper.engine.queue_held or sleep.done())
    after = [sleeper.ask(request) for request in generations[half:]]
    await sleep
    assert sleeper.engine.state().num_running == 0
    cache = sleeper.engine._runner.model._cache  # type: ignore[attr-defined]
    assert cache.keys.numel() == cache.values.numel() == 0
    weights = [*sleeper.core._checkpoint.backbone.parameters()]
    assert {weight.is_meta for weight in weights} == {level == 2}
    await eventually(lambda: sleeper.thread.state().num_waiting > 0)
    steps = sleeper.gate.steps
    await asyncio.sleep(0.02)
    assert sleeper.gate.steps == steps
    await sleeper.change()
    tokens = [list(answer) for answer in await asyncio.gather(*before, *after)]
    assert tokens == [entry["token_ids"] for entry in expected(name)]


async def test_quantized_weights_come_back(sleepers: list[Sleeper]) -> None:
    sleeper = Sleeper(GOLDEN / GOLDEN_NAMES[0], quantization="int8")
    sleepers.append(sleeper)
    sleeper.gate.open.set()
    generations = requests(GOLDEN_NAMES[0])[::3]
    before = await asyncio.gather(*(sleeper.ask(request) for request in generations))
    await sleeper.change(level=2)
    await sleeper.change()
    assert await asyncio.gather(*(sleeper.ask(request) for request in generations)) == before


@pytest.mark.parametrize("mode", ALL_MODES, ids=lambda mode: mode.name)
async def test_a_paused_request_sleeps_only_after_its_end(sleepers: list[Sleeper], mode: object) -> None:
    """It goes on for that, and the engine is paused again afterwards."""
    sleeper = Sleeper(GOLDEN / GOLDEN_NAMES[0])
    sleepers.append(sleeper)
    request = request_of("x", PROMPT, mode, tokens=48)  # type: ignore[arg-type]
    alone = Engine(load_checkpoint(GOLDEN / GOLDEN_NAMES[0]), EngineConfig(kv_cache_tokens=4096))
    (done,) = alone.generate([request])
    answer = sleeper.ask(request)
    await sleeper.gate.holds(sleeper.thread)
    await sleeper.steps(2)
    await sleeper.change(paused=True)
    assert not answer.done()
    await sleeper.change(paused=True, level=1)
    assert await answer == done.token_ids
    assert (sleeper.engine.paused, sleeper.engine.sleep_level) == (True, 1)
    late = sleeper.ask(replace(request, request_id="late"))
    await sleeper.change(paused=True)
    await eventually(lambda: sleeper.thread.state().num_waiting == 1)
    assert not late.done()
    await sleeper.change()
    assert await late == done.token_ids


async def test_requests_end_in_time_while_the_engine_stands(sleepers: list[Sleeper]) -> None:
    """Running and waiting ones, by their time limit or because their client leaves."""
    sleeper = Sleeper(GOLDEN / GOLDEN_NAMES[0], max_running=2)
    sleepers.append(sleeper)
    tasks = [
        sleeper.ask(replace(request_of(name, PROMPT, Static(), tokens=400), timeout_s=limit))
        for name, limit in (("late", 1.0), ("left", None), ("waits late", 1.0), ("waits left", None))
    ]
    await sleeper.gate.holds(sleeper.thread)
    await sleeper.steps(1)
    await sleeper.change(paused=True)
    assert (sleeper.engine.state().num_running, sleeper.engine.state().num_waiting) == (2, 2)
    for task in tasks[1::2]:
        task.cancel()
    for ended in await asyncio.gather(*tasks[::2], return_exceptions=True):
        assert isinstance(ended, DeadlineExceeded)
    await eventually(lambda: sleeper.engine.state().kv_pages_used == 0 and not sleeper.engine.has_work)


async def test_an_engine_that_stands_does_not_spin(sleepers: list[Sleeper], monkeypatch: pytest.MonkeyPatch) -> None:
    """With a request that runs and one that waits, it looks at their time limits now and then."""
    monkeypatch.setattr(thread_module, "_POLL_S", 0.05)
    sleeper = Sleeper(GOLDEN / GOLDEN_NAMES[0], max_running=1)
    sleepers.append(sleeper)
    looks, expire = [0], sleeper.engine.expire

    def counted() -> list[BlockEvent]:
        looks[0] += 1
        return expire()

    tasks = [sleeper.ask(request_of(name, PROMPT, Static(), tokens=200)) for name in "ab"]
    await sleeper.gate.holds(sleeper.thread)
    await sleeper.steps(1)
    await sleeper.change(paused=True)
    sleeper.engine.expire = counted  # type: ignore[method-assign]
    began = time.monotonic()
    await eventually(lambda: looks[0] >= 3)
    assert looks[0] <= (time.monotonic() - began) / 0.05 + 2
    assert len(sleeper.seen.reports) == sleeper.gate.steps
    for task in tasks:
        task.cancel()


async def test_a_standing_engine_stops(sleepers: list[Sleeper]) -> None:
    sleeper = Sleeper(GOLDEN / GOLDEN_NAMES[0])
    sleepers.append(sleeper)
    answer = sleeper.ask(request_of("x", PROMPT, Static(), tokens=200))
    await sleeper.gate.holds(sleeper.thread)
    await sleeper.steps(1)
    await sleeper.change(paused=True)
    sleeper.thread.stop()
    with pytest.raises(ReplicaStopping):
        await answer
    with pytest.raises(ReplicaStopping):
        await sleeper.change()


@pytest.mark.parametrize("part", ["cache", "forwards", "weights"])
async def test_without_memory_the_engine_sleeps_on(
    sleepers: list[Sleeper], monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    sleeper = Sleeper(GOLDEN / GOLDEN_NAMES[0])
    sleepers.append(sleeper)
    request = request_of("x", PROMPT, Static(), tokens=24)
    sleeper.gate.open.set()
    before = await sleeper.ask(request)
    await sleeper.change(level=2)
    with monkeypatch.context() as patched:
        if part == "cache":
            patched.setattr(PagedCache, "_take", _no_memory)
        elif part == "forwards":
            sleeper.engine.prepare()
            patched.setattr(sleeper.engine._runner, "prepare", _no_memory)
        else:
            patched.setattr("service.model.weight_update._replace_tensors", _no_memory)
        for _ in range(2):
            with pytest.raises(OutOfMemory, match="no memory for"):
                await sleeper.change()
            assert sleeper.engine.halted
            assert sleeper.engine._runner.model._cache.keys.numel() == 0  # type: ignore[attr-defined]
    answer = sleeper.ask(replace(request, request_id="y"))
    await sleeper.change()
    assert await answer == before


def _no_memory(*_: object) -> None:
    raise MemoryError


async def test_weights_without_their_folder_do_not_wake_up(sleepers: list[Sleeper], tmp_path: Path) -> None:
    sleeper = Sleeper(GOLDEN / GOLDEN_NAMES[0])
    sleepers.append(sleeper)
    await sleeper.change(level=2)
    gone = SetGeneration(paused=False, sleep_level=0, wait=False, folders=(str(tmp_path / "gone"),))
    with pytest.raises(MrpServeError, match="gone"):
        await sleeper.core.set_generation(sleeper.thread, gone)
    assert sleeper.engine.halted
    await sleeper.change()
    assert not sleeper.engine.halted
