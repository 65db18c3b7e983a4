"""Weights that are updated in an engine: one version decodes each request, and nothing of the old one is left."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from service.decode.modes import Speculative, Static
from service.engine import Engine, EngineConfig, EngineDeps, GenerationRequest
from service.errors import EngineFailed, ReplicaStopping, WeightsChanged
from service.model import Checkpoint, LoadOptions, load_checkpoint
from service.model.weight_update import apply_update, load_update
from tests.engine.gated import GatedEngine, eventually
from tests.engine.helpers import CHEAP_ROWS, events_of, request_of
from tests.engine.test_golden import expected, requests
from tests.other_weights import FIRST, other_weights
from tests.tiny import GOLDEN_NAMES

PROMPT = tuple(range(1, 20))
LIMITS = EngineConfig(kv_cache_tokens=4096)


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return other_weights(tmp_path_factory.mktemp("weights") / "other")


@pytest.fixture
def checkpoint() -> Checkpoint:
    return load_checkpoint(FIRST)


@pytest.fixture
def new(checkpoint: Checkpoint, other: Path) -> Callable[[], None]:
    return partial(apply_update, checkpoint, load_update([other], checkpoint.config, LoadOptions()))


def engine_of(checkpoint: Checkpoint, config: EngineConfig = LIMITS) -> Engine:
    return Engine(checkpoint, config, deps=EngineDeps(costs=CHEAP_ROWS))


def decoded(engine: Engine, *generations: GenerationRequest) -> list[tuple[int, ...]]:
    return [done.token_ids for done in engine.generate(generations)]


def test_golden_requests_are_decoded_as_by_a_fresh_load(
    checkpoint: Checkpoint, other: Path, new: Callable[[], None]
) -> None:
    """In all modes. Nothing is found in the prefix cache."""
    engine, generations = engine_of(checkpoint), requests(GOLDEN_NAMES[0])[::2]
    old = [tuple(entry["token_ids"]) for entry in expected(GOLDEN_NAMES[0])[::2]]
    assert decoded(engine, *generations) == old
    engine.update_weights(new, 1)
    first = engine.generate([generations[0]])[0]
    assert first.stats.cached_tokens == 0
    assert {event.version for event in first.blocks} == {1}
    wanted = decoded(engine_of(load_checkpoint(other)), *generations)
    assert decoded(engine, *generations) == wanted
    assert wanted != old
    assert engine.state().kv_pages_used == 0


@pytest.mark.parametrize("ahead", [False, True])
def test_nothing_of_requests_that_were_ended_is_left(
    checkpoint: Checkpoint, other: Path, new: Callable[[], None], ahead: bool
) -> None:
    engine = engine_of(checkpoint, replace(LIMITS, async_scheduling=ahead))
    generations = [
        request_of(str(number), PROMPT, (Speculative(2), Static())[number % 2], tokens=32) for number in range(4)
    ]
    for request in generations:
        engine.submit(request)
    for _ in range(3):
        engine.step()
    assert engine.abort_running() == ["0", "1", "2", "3"]
    engine.update_weights(new, 1)
    assert not engine._steps
    assert decoded(engine, *generations) == decoded(engine_of(load_checkpoint(other)), *generations)


def test_other_weights_do_not_continue_an_answer(checkpoint: Checkpoint, new: Callable[[], None]) -> None:
    engine = engine_of(checkpoint)
    engine.update_weights(new, 3)
    events = events_of(engine, [replace(request_of(name, PROMPT), version=n) for name, n in (("old", 2), ("own", 3))])
    (error,) = [event.error for event in events["old"]]
    assert isinstance(error, WeightsChanged)
    assert "weights of version 2 began this answer, version 3 answers now" in error.message
    assert events["own"][-1].finish_reason == "length"
    assert engine.state().kv_pages_used == 0


class UpdatableEngine(GatedEngine):
    def ask(self, name: str, tokens: int = 24) -> asyncio.Task[tuple[int, ...]]:
        return self.generate(request_of(name, PROMPT, Static(), tokens=tokens))

    def update_weights(self, new: Callable[[], None], *, abort: bool = False) -> asyncio.Task[None]:
        update = partial(self.engine.update_weights, new, 1, 1)
        return asyncio.ensure_future(self.thread.run(update, when_idle=True, abort=abort))


@pytest.fixture
def running(checkpoint: Checkpoint) -> Iterator[UpdatableEngine]:
    engine = UpdatableEngine(engine_of(checkpoint))
    yield engine
    engine.close()


def answers(source: Path) -> tuple[int, ...]:
    return decoded(engine_of(load_checkpoint(source)), request_of("x", PROMPT, Static(), tokens=24))[0]


async def test_requests_that_run_finish_with_the_old_weights_and_others_wait_for_the_new(
    running: UpdatableEngine, other: Path, new: Callable[[], None]
) -> None:
    before = [running.ask(f"before {number}") for number in range(3)]
    await running.at_gate()
    change = running.update_weights(new)
    after = [running.ask(f"after {number}") for number in range(3)]
    await eventually(lambda: len(running.thread._inbox.submitted) == 3)
    running.gate.set()
    old, fresh = answers(FIRST), answers(other)
    assert old != fresh
    assert await asyncio.gather(*before) == [old] * 3
    assert await asyncio.gather(*after) == [fresh] * 3
    await change
    assert running.engine.version == 1


async def test_an_update_needs_no_further_request(running: UpdatableEngine, new: Callable[[], None]) -> None:
    """The engine has no work when the last running request ends."""
    before = running.ask("before")
    await running.at_gate()
    change = running.update_weights(new)
    await asyncio.sleep(0)
    running.gate.set()
    assert await before == answers(FIRST)
    async with asyncio.timeout(120):
        await change


async def test_requests_that_run_can_be_ended_and_waiting_ones_are_not(
    running: UpdatableEngine, other: Path, new: Callable[[], None]
) -> None:
    before = [running.ask(f"before {number}", tokens=200) for number in range(2)]
    await running.at_gate()
    change, after = running.update_weights(new, abort=True), running.ask("after")
    await eventually(lambda: len(running.thread._inbox.submitted) == 1)
    running.gate.set()
    for ended in await asyncio.gather(*before, return_exceptions=True):
        assert isinstance(ended, WeightsChanged)
    assert await after == answers(other)
    await change


async def test_weights_that_are_half_taken_end_the_engine(running: UpdatableEngine) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(EngineFailed, match="ZeroDivisionError"):
        await running.update_weights(fail)
    assert "ZeroDivisionError" in str(running.thread.failure)
    with pytest.raises(ReplicaStopping):
        await running.update_weights(fail)


async def test_a_pending_update_fails_when_the_engine_stops(running: UpdatableEngine, new: Callable[[], None]) -> None:
    answer = running.ask("x", tokens=200)
    await running.at_gate()
    change = running.update_weights(new)
    await asyncio.sleep(0)
    running.thread._stopping = True
    running.gate.set()
    for ended in await asyncio.gather(answer, change, return_exceptions=True):
        assert isinstance(ended, ReplicaStopping)
