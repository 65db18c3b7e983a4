"""Answers over several scripted attempts: the next attempt's request, their number, and when they end."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from service.decode.modes import Static
from service.engine.request import SamplingParams, Stats
from service.errors import (
    DeadlineExceeded,
    EngineFailed,
    InvalidRequest,
    MrpServeError,
    NotReady,
    Quarantined,
    QueueFull,
    ReplicaLost,
    ReplicaStopping,
    WeightsBehind,
    WeightsChanged,
)
from service.ipc import data
from service.ipc.data import Arrival
from service.messages.wire import Chunk, Ending, Failure, Items, ReplicaRequest, Resume, Weights
from service.routing import failover
from service.routing.failover import FailoverPolicy
from tests.gateway.doubles import free, pipeline

FIRST, SECOND = (Chunk(n, "ab"[n], (10 + n, 20 + n), Stats(decoded_tokens=2 * n + 2)) for n in range(2))
ENDING = Ending("length", 5, 6, Stats(decoded_tokens=6))
LAST = Chunk(2, "c", (12, 22), Stats(decoded_tokens=6), ending=ENDING)
WHOLE = [FIRST, SECOND, LAST, ENDING]
LOST = ReplicaLost("gone", retry_after=1.0)

Item = Chunk | Ending | Failure | BaseException | None


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failover, "_PAUSE_S", 0.0)


class Attempts:
    """A backend with a script for every attempt. Exceptions are raised; None waits for ever."""

    def __init__(self, *scripts: list[Item]) -> None:
        self.scripts = list(scripts)
        self.requests: list[ReplicaRequest] = []
        self.errors: list[MrpServeError] = []
        self.open = 0

    async def stream(self, request: ReplicaRequest) -> Items:
        self.requests.append(request)
        self.open += 1
        try:
            for item in self.scripts.pop(0):
                if item is None:
                    await asyncio.Event().wait()
                elif isinstance(item, BaseException):
                    raise item
                else:
                    yield item
        finally:
            self.open -= 1

    def note_error(self, error: MrpServeError) -> None:
        self.errors.append(error)


class Asked:
    """A failover over scripted attempts, and its counts."""

    def __init__(self, attempts: Attempts, max_failovers: int = 3) -> None:
        self.counted: list[str] = []
        self.attempts = attempts
        policy = FailoverPolicy(max_failovers, lambda error: self.counted.append(error.code))
        self.answers = pipeline(attempts, policy)  # type: ignore[arg-type]

    async def items(self, timeout_s: float = 60.0) -> list[Chunk | Ending]:
        async with aclosing(self.answers.stream(request(timeout_s), free())) as items:
            return [item async for item in items]


def request(timeout_s: float = 60.0) -> ReplicaRequest:
    return ReplicaRequest("id", Static(), SamplingParams(seed=7), 6, timeout_s, Arrival.now(), token_ids=(1, 2, 3))


async def test_an_undisturbed_answer_is_asked_for_once() -> None:
    asked = Asked(Attempts([FIRST, SECOND, LAST]))
    assert await asked.items() == WHOLE
    (sent,) = asked.attempts.requests
    assert (sent.request_id, sent.resume) == ("id", Resume())
    bare = Asked(Attempts([FIRST, ENDING]))
    assert await bare.items() == [FIRST, ENDING]
    assert asked.counted == bare.counted == []


async def test_a_stream_keeps_no_chunk_that_was_sent() -> None:
    """Its log-probabilities would take a megabyte for every few hundred tokens, until the answer ends."""
    asked = Asked(Attempts([FIRST, SECOND, None]))
    references = sys.getrefcount(FIRST)
    async with aclosing(asked.answers.stream(request(), free())) as items:
        assert await anext(items) is FIRST
        assert await anext(items) is SECOND
        assert sys.getrefcount(FIRST) == references


@pytest.mark.parametrize("error", [LOST, Failure(ReplicaStopping("stops")), Failure(EngineFailed("broken"))])
async def test_after_some_blocks_another_replica_is_asked_for_the_rest(error: Item) -> None:
    asked = Asked(Attempts([FIRST, SECOND, error], [LAST]))
    assert await asked.items() == WHOLE
    first, second = asked.attempts.requests
    assert second.resume == Resume((10, 20, 11, 21), 2, SECOND.stats)
    assert (first.request_id, second.request_id) == ("id", "id.1")
    assert second.sampling == first.sampling
    assert (second.token_ids, second.max_new_tokens, second.arrived) == ((1, 2, 3), 6, first.arrived)
    assert len(asked.counted) == 1


async def test_a_second_failed_engine_ends_the_request_and_no_third_replica_gets_it() -> None:
    failed = Failure(EngineFailed("broken"))
    asked = Asked(Attempts([FIRST, failed], [SECOND, failed], [LAST]))
    with pytest.raises(Quarantined, match="the engines of two replicas stopped while they decoded this request"):
        await asked.items()
    assert len(asked.attempts.requests) == 2
    assert asked.counted == ["engine_failed"]
    apart = Asked(Attempts([failed], [LOST], [failed]))
    with pytest.raises(Quarantined):
        await apart.items()
    assert len(apart.attempts.requests) == 3


async def test_without_failovers_a_failed_engine_is_what_the_client_hears_of() -> None:
    with pytest.raises(EngineFailed):
        await Asked(Attempts([Failure(EngineFailed("broken"))]), max_failovers=0).items()


async def test_what_several_replicas_sent_adds_up() -> None:
    asked = Asked(Attempts([FIRST, LOST], [SECOND, LOST], [LOST], [LAST]))
    assert await asked.items() == WHOLE
    assert [sent.resume.num_blocks for sent in asked.attempts.requests] == [0, 1, 2, 2]
    assert asked.attempts.requests[-1].resume == Resume((10, 20, 11, 21), 2, SECOND.stats)
    assert asked.counted == ["replica_lost"] * 3


async def test_the_backend_hears_of_every_error_of_an_attempt() -> None:
    broken = EngineFailed("broken")
    asked = Asked(Attempts([FIRST, LOST], [Failure(broken)], [SECOND, LAST]))
    assert await asked.items() == WHOLE
    assert asked.attempts.errors == [LOST, broken]


async def test_before_the_first_block_it_is_the_same_request_again() -> None:
    asked = Asked(Attempts([LOST], [FIRST, SECOND, LAST]))
    assert await asked.items() == WHOLE
    assert asked.attempts.requests[1].resume == Resume()


async def test_after_the_last_block_nothing_is_left_to_ask() -> None:
    """The last block has its ending with it."""
    for tail in (LOST, Failure(LOST), NotReady("gone")):
        asked = Asked(Attempts([FIRST, SECOND, LAST, tail]))
        assert await asked.items() == WHOLE
        assert asked.counted == []
    assert await Asked(Attempts([FIRST, ENDING, LOST])).items() == [FIRST, ENDING]


async def test_a_stream_without_an_ending_is_a_bug() -> None:
    with pytest.raises(AssertionError, match="without an ending"):
        await Asked(Attempts([FIRST])).items()


@pytest.mark.parametrize("max_failovers", [0, 1, 3])
async def test_lost_attempts_are_limited(max_failovers: int) -> None:
    asked = Asked(Attempts(*[[LOST]] * 9), max_failovers)
    with pytest.raises(ReplicaLost, match="gone") as raised:
        await asked.items()
    assert raised.value.status == 503
    assert len(asked.attempts.requests) == max_failovers + 1
    assert len(asked.counted) == max_failovers


@pytest.mark.parametrize(
    "error",
    [
        InvalidRequest("no"),
        DeadlineExceeded("late"),
        QueueFull("full"),
        NotReady("there is none"),
        MrpServeError("what?"),
        RuntimeError("a bug"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_what_no_other_replica_would_do_better(error: Exception) -> None:
    for script in ([FIRST, error], [error]):
        asked = Asked(Attempts(script))
        with pytest.raises(type(error)):
            await asked.items()
        assert asked.counted == []
        assert len(asked.attempts.requests) == 1


async def test_who_is_refused_by_stopping_replicas_asks_on() -> None:
    """A broken replica refuses at once and so looks idle. A request that is sent there again does not count as lost."""
    asked = Asked(Attempts(*[[Failure(ReplicaStopping("broken"))]] * 20, [FIRST, ENDING]), max_failovers=1)
    assert await asked.items() == [FIRST, ENDING]
    assert asked.counted == ["replica_stopping"] * 20


async def test_who_was_let_in_waits_for_a_full_queue() -> None:
    full = Failure(QueueFull("full"))
    asked = Asked(Attempts([FIRST, LOST], *[[full]] * 9, [Ending("length", 5, 2, Stats())]), max_failovers=1)
    assert (await asked.items())[0] == FIRST
    assert asked.counted == ["replica_lost"] + ["queue_full"] * 9


async def test_the_deadline_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0

    async def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr(failover, "_PAUSE_S", 0.02)
    monkeypatch.setattr(failover.asyncio, "sleep", sleep)
    monkeypatch.setattr(data, "time", SimpleNamespace(monotonic=lambda: now))
    asked = Asked(Attempts(*[[Failure(ReplicaStopping("stops"))]] * 99))
    with pytest.raises(ReplicaStopping):
        await asked.items(0.1)
    assert len(asked.counted) == 2  # 0.02 + 0.04 s are past, 0.08 more would be too late


async def test_pauses_grow_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(failover, "_PAUSE_S", 0.05)
    monkeypatch.setattr(failover.asyncio, "sleep", sleep)
    await Asked(Attempts(*[[Failure(ReplicaStopping("stops"))]] * 7, [ENDING])).items()
    assert pauses == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]


@pytest.mark.parametrize("error", [LOST, Failure(LOST), Failure(EngineFailed("broken"))])
async def test_every_attempt_has_an_id_of_its_own(error: Failure | Exception) -> None:
    asked = Asked(Attempts([error], [LOST], [FIRST, SECOND, LAST]))
    assert await asked.items() == WHOLE
    assert [sent.request_id for sent in asked.attempts.requests] == ["id", "id.1", "id.2"]
    assert [sent.attempt for sent in asked.attempts.requests] == [0, 1, 2]
    assert all(sent.resume == Resume() and sent.sampling.seed == 7 for sent in asked.attempts.requests)
    assert len(asked.counted) == 2


async def test_a_whole_answer_goes_on_after_the_last_chunk() -> None:
    asked = Asked(Attempts([FIRST, LOST], [SECOND, Failure(LOST)], [LAST]))
    answer = await asked.answers.complete(replace(request(), together=16), free())
    assert (answer.text, answer.token_ids, answer.ending) == ("abc", (10, 20, 11, 21, 12, 22), ENDING)
    assert [sent.resume.num_blocks for sent in asked.attempts.requests] == [0, 1, 2]


@pytest.mark.parametrize("scripts", [([FIRST, None],), ([FIRST, LOST], [SECOND, None])])
@pytest.mark.parametrize("leave", ["close", "cancel"])
async def test_who_leaves_ends_the_attempt_at_hand(scripts: tuple[list[Item], ...], leave: str) -> None:
    asked = Asked(Attempts(*scripts))
    items = asked.answers.stream(request(), free())
    taken = [await anext(items) for _ in range(len(scripts))]
    assert taken == [FIRST, SECOND][: len(scripts)]
    assert asked.attempts.open == 1
    if leave == "cancel":
        await _cancelled(lambda: anext(items))
    await items.aclose()
    assert asked.attempts.open == 0
    assert len(asked.attempts.requests) == len(scripts)


async def test_who_leaves_in_a_pause_is_not_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failover, "_PAUSE_S", 10.0)
    monkeypatch.setattr(failover, "_LONGEST_PAUSE_S", 10.0)
    asked = Asked(Attempts([FIRST, LOST]))
    items: AsyncGenerator[Chunk | Ending] = asked.answers.stream(request(), free())
    await anext(items)
    await _cancelled(lambda: anext(items))
    await items.aclose()
    assert len(asked.attempts.requests) == 1


async def _cancelled(wait: Callable[[], object]) -> None:
    """Cancels a wait that has begun."""

    async def waiting() -> None:
        await wait()  # type: ignore[misc]

    task = asyncio.create_task(waiting())
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


class TestWeights:
    """weight updates: which replicas may go on with an answer."""

    async def test_a_replica_that_is_behind_is_asked_again_until_one_is_not(self) -> None:
        behind = Failure(WeightsBehind("too old", retry_after=1.0))
        asked = Asked(Attempts(*[[behind]] * 5, [FIRST, SECOND, LAST]))
        assert await asked.items() == WHOLE
        assert asked.counted == ["weights_behind"] * 5

    async def test_an_answer_of_which_nothing_was_sent_begins_again(self) -> None:
        changed = Failure(WeightsChanged("other weights"))
        asked = Asked(Attempts([changed], [FIRST, SECOND, LAST]))
        assert await asked.items() == WHOLE
        assert asked.counted == ["weights_changed"]

    async def test_a_whole_answer_begins_again_since_its_client_has_none_of_it(self) -> None:
        asked = Asked(Attempts([FIRST, Failure(WeightsChanged("other weights"))], [FIRST, SECOND, LAST]))
        answer = await asked.answers.complete(replace(request(), together=16), free())
        assert answer.token_ids == (10, 20, 11, 21, 12, 22)
        assert asked.attempts.requests[1].resume == Resume()

    async def test_an_answer_of_which_a_part_was_sent_ends(self) -> None:
        asked = Asked(Attempts([FIRST, Failure(WeightsChanged("other weights"))], [LAST]))
        with pytest.raises(WeightsChanged):
            await asked.items()
        assert len(asked.attempts.requests) == 1

    async def test_every_attempt_names_the_newest_weights_and_those_that_began(self) -> None:
        known = [Weights(3, "a", "m"), Weights(4, "b", "m")]
        attempts = Attempts([replace(FIRST, version=3), LOST], [LAST])
        newest = iter(known)
        policy = FailoverPolicy(3, newest_weights=lambda: next(newest))
        async with aclosing(pipeline(attempts, policy).stream(request(), free())) as items:  # type: ignore[arg-type]
            assert len([item async for item in items]) == 3
        assert [sent.weights for sent in attempts.requests] == known
        assert [sent.resume.version for sent in attempts.requests] == [0, 3]
