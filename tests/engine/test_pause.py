"""An engine that is paused or asleep: the same tokens afterwards, to the bit, and nothing is lost meanwhile."""

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from service.decode.modes import Static
from service.engine import Engine, EngineConfig, EngineDeps
from service.engine import thread as thread_module
from service.engine_process.core import EngineCore
from service.errors import DeadlineExceeded, MrpServeError, OutOfMemory, ReplicaStopping
from service.messages.replica_status import PauseState, SetPause
from service.messages.wire import Weights
from service.model import LoadOptions, load_checkpoint
from service.model.attention import PagedCache
from service.settings.settings import Settings
from tests.engine.gated import GatedEngine, eventually
from tests.engine.helpers import ALL_MODES, CHEAP_ROWS, Recorder, request_of
from tests.engine.test_golden import expected, requests
from tests.thinned import fast_only
from tests.tiny import ALL_NAMES, EXPERTS_NAME, GOLDEN, GOLDEN_NAMES, LLADA2_NAME, golden

PROMPT = tuple(range(1, 20))

Start = Callable[..., "ReplicaEngine"]


class ReplicaEngine(GatedEngine):
    """A replica's engine on its thread. `change` pauses it, puts it to sleep or wakes it up, as the routes order."""

    def __init__(self, model: Path, **settings: object) -> None:
        self.settings = Settings(model=str(model), device="cpu", dtype="float32", kv_cache_tokens=4096, **settings)  # type: ignore[arg-type]
        checkpoint = load_checkpoint(model, LoadOptions(quantization=self.settings.quantization))
        self.recorder = Recorder()
        self.core = EngineCore(checkpoint, self.settings, self.recorder, EngineDeps(costs=CHEAP_ROWS))
        super().__init__(self.core.engine)

    async def change(self, *, paused: bool = False, level: int = 0, wait: bool = False) -> None:
        state = PauseState(self.core.pause.number + 1, paused, level)
        await self.core.control(self.thread, SetPause(state, wait))

    def close(self) -> None:
        super().close()
        self.core.close()


@pytest.fixture
def start() -> Iterator[Callable[..., ReplicaEngine]]:
    """start(model, **settings) -> an engine on its thread; stopped after the test."""
    engines: list[ReplicaEngine] = []

    def start(model: str = GOLDEN_NAMES[0], **settings: object) -> ReplicaEngine:
        engines.append(ReplicaEngine(GOLDEN / model, **settings))
        return engines[-1]

    yield start
    for replica in engines:
        replica.close()


@pytest.mark.parametrize("name", fast_only({GOLDEN_NAMES[1], GOLDEN_NAMES[2], LLADA2_NAME}.__contains__, ALL_NAMES))
async def test_golden_requests_that_are_paused_have_the_same_tokens(start: Start, name: str) -> None:
    """In the middle of every mode, many times; some pauses let the running requests finish."""
    replica = start(name)
    answers = [replica.generate(request) for request in requests(name)]
    await replica.at_gate()
    for turn in range(12):
        await replica.steps(1 + turn % 3)
        wait = turn % 6 == 5
        await replica.change(paused=True, wait=wait)
        before, state = replica.num_steps, replica.engine.state()
        assert not (wait and state.num_running)
        await asyncio.sleep(0.02)
        assert replica.num_steps == before
        assert replica.thread.state() == state
        assert state.paused
        await replica.change()
    assert [list(tokens) for tokens in await asyncio.gather(*answers)] == [
        entry["token_ids"] for entry in expected(name)
    ]
    assert replica.engine.state().kv_pages_used == 0


@pytest.mark.parametrize("name", fast_only((GOLDEN_NAMES[0], EXPERTS_NAME).__contains__, ALL_NAMES))
@pytest.mark.parametrize("level", [1, 2])
async def test_golden_requests_after_sleep_have_the_same_tokens(start: Start, name: str, level: int) -> None:
    """Running requests finish first, waiting ones stay in the queue. No key or value is left from before."""
    replica = start(name)
    generations = requests(name)
    half = len(generations) // 2
    before = [replica.generate(request) for request in generations[:half]]
    await replica.at_gate()
    await replica.steps(3)
    sleep = asyncio.ensure_future(replica.change(level=level))
    await eventually(lambda: replica.engine.queue_held or sleep.done())
    after = [replica.generate(request) for request in generations[half:]]
    await sleep
    assert replica.engine.state().num_running == 0
    cache = replica.engine._runner.model._cache  # type: ignore[attr-defined]
    assert cache.keys.numel() == cache.values.numel() == 0
    weights = [*replica.core._checkpoint.backbone.parameters()]
    assert {weight.is_meta for weight in weights} == {level == 2}
    await eventually(lambda: replica.thread.state().num_waiting > 0)
    steps = replica.num_steps
    await asyncio.sleep(0.02)
    assert replica.num_steps == steps
    await replica.change()
    tokens = [list(answer) for answer in await asyncio.gather(*before, *after)]
    assert tokens == [entry["token_ids"] for entry in expected(name)]


async def test_quantized_weights_come_back(start: Start) -> None:
    replica = start(quantization="w8a8")
    replica.gate.set()
    generations = requests(GOLDEN_NAMES[0])[::3]
    before = await asyncio.gather(*(replica.generate(request) for request in generations))
    await replica.change(level=2)
    await replica.change()
    assert await asyncio.gather(*(replica.generate(request) for request in generations)) == before


async def test_paused_requests_of_all_modes_end_before_sleep(start: Start) -> None:
    """They run for that, and the engine is paused again afterwards."""
    replica = start(max_num_seqs=len(ALL_MODES))
    generations = [request_of(str(mode), PROMPT, mode, tokens=48) for mode in ALL_MODES]
    engine = Engine(golden(GOLDEN_NAMES[0]), EngineConfig(kv_cache_tokens=4096))
    expected_tokens = [done.token_ids for done in engine.generate(generations)]
    answers = [replica.generate(request) for request in generations]
    await replica.at_gate()
    await replica.steps(2)
    await replica.change(paused=True)
    assert not any(answer.done() for answer in answers)
    await replica.change(paused=True, level=1)
    assert await asyncio.gather(*answers) == expected_tokens
    assert (replica.engine.paused, replica.engine.sleep_level) == (True, 1)
    late = replica.generate(replace(generations[0], request_id="late"))
    await replica.change(paused=True)
    await eventually(lambda: replica.thread.state().num_waiting == 1)
    assert not late.done()
    await replica.change()
    assert await late == expected_tokens[0]


async def test_requests_end_in_time_while_the_engine_is_halted(start: Start) -> None:
    replica = start(max_num_seqs=2)
    tasks = [
        replica.generate(replace(request_of(name, PROMPT, Static(), tokens=400), timeout_s=limit))
        for name, limit in (("late", 1.0), ("left", None), ("waits late", 1.0), ("waits left", None))
    ]
    await replica.at_gate()
    await replica.steps(1)
    await replica.change(paused=True)
    assert (replica.engine.state().num_running, replica.engine.state().num_waiting) == (2, 2)
    for task in tasks[1::2]:
        task.cancel()
    for ended in await asyncio.gather(*tasks[::2], return_exceptions=True):
        assert isinstance(ended, DeadlineExceeded)
    await eventually(lambda: replica.engine.state().kv_pages_used == 0 and not replica.engine.has_work)


async def test_a_halted_engine_does_not_spin(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_module, "_POLL_S", 0.05)
    replica, looks = start(), list[float]()
    answer, expire = replica.generate(request_of("a", PROMPT, Static(), tokens=200)), replica.engine.expire
    await replica.at_gate()
    await replica.steps(1)
    await replica.change(paused=True)
    monkeypatch.setattr(replica.engine, "expire", lambda: looks.append(time.monotonic()) or expire())
    await eventually(lambda: len(looks) >= 4)
    assert looks[3] - looks[1] >= 0.08
    answer.cancel()


async def test_a_halted_engine_stops(start: Start) -> None:
    replica = start()
    answer = replica.generate(request_of("x", PROMPT, Static(), tokens=200))
    await replica.at_gate()
    await replica.steps(1)
    await replica.change(paused=True)
    replica.thread.stop()
    with pytest.raises(ReplicaStopping):
        await answer
    with pytest.raises(ReplicaStopping):
        await replica.change()


@pytest.mark.parametrize("part", ["cache", "forwards", "weights"])
async def test_without_memory_the_engine_sleeps_on(start: Start, monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    replica = start()
    request = request_of("x", PROMPT, Static(), tokens=24)
    replica.gate.set()
    before = await replica.generate(request)
    await replica.change(level=2)
    with monkeypatch.context() as patched:
        if part == "cache":
            patched.setattr(PagedCache, "_take", _no_memory)
        elif part == "forwards":
            replica.engine.prepare()
            patched.setattr(replica.engine._runner, "prepare", _no_memory)
        else:
            patched.setattr("service.model.weight_update._replace_tensors", _no_memory)
        for _ in range(2):
            with pytest.raises(OutOfMemory, match="no memory for"):
                await replica.change()
            assert replica.engine.halted
            assert replica.engine._runner.model._cache.keys.numel() == 0  # type: ignore[attr-defined]
    answer = replica.generate(replace(request, request_id="y"))
    await replica.change()
    assert await answer == before


def _no_memory(*_: object) -> None:
    raise MemoryError


async def test_weights_without_their_folder_do_not_wake_up(start: Start, tmp_path: Path) -> None:
    replica = start()
    await replica.change(level=2)
    served, replica.core.weights = replica.core.weights, Weights(model=str(tmp_path / "gone"))
    with pytest.raises(MrpServeError, match="gone"):
        await replica.change()
    assert replica.engine.halted
    replica.core.weights = served
    await replica.change()
    assert not replica.engine.halted
