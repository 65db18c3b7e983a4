"""Answers over several scripted attempts: the next attempt's request, the number of attempts, and when they end."""

import asyncio
import sys
from contextlib import aclosing
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from service.decode.modes import Dynamic, Static
from service.engine.request import MeasuredMode, SamplingParams, Stats
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
from service.messages.wire import (
    Answer,
    AnswerStream,
    Chunk,
    Ending,
    Failure,
    ReplicaRequest,
    ReplicaStream,
    Resume,
    Weights,
)
from service.routing import failover
from service.routing.failover import FailoverPolicy
from tests.gateway.doubles import pipeline, uncharged

FIRST, SECOND = (Chunk(n, "ab"[n], (10 + n, 20 + n), Stats(decoded_tokens=2 * n + 2)) for n in range(2))
ENDING = Ending("length", 5, 6, Stats(decoded_tokens=6))
LAST = Chunk(2, "c", (12, 22), Stats(decoded_tokens=6), ending=ENDING)
WHOLE = [FIRST, SECOND, LAST, ENDING]
LOST = ReplicaLost("gone", retry_after=1.0)
STOPPING = Failure(ReplicaStopping("stops"))
FAILED = Failure(EngineFailed("broken"))
CHANGED = Failure(WeightsChanged("other weights"))

Item = Chunk | Ending | Failure | BaseException | None


class Attempts:
    """A request to a backend with a script for every attempt. Exceptions are raised; None waits for ever."""

    def __init__(self, *scripts: list[Item], max_failovers: int = 3, pause_s: float = 0.0) -> None:
        self.scripts = list(scripts)
        self.requests: list[ReplicaRequest] = []
        self.errors: list[MrpServeError] = []
        #: why further attempts were made
        self.reasons: list[str] = []
        self.open = 0
        self.policy = FailoverPolicy(max_failovers, lambda error: self.reasons.append(error.code), pause_s=pause_s)

    async def stream(self, request: ReplicaRequest) -> ReplicaStream:
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

    def answer(self, timeout_s: float = 60.0) -> AnswerStream:
        return pipeline(self, self.policy).stream(request(timeout_s), uncharged())  # type: ignore[arg-type]

    async def items(self, timeout_s: float = 60.0) -> list[Chunk | Ending]:
        async with aclosing(self.answer(timeout_s)) as items:
            return [item async for item in items]

    async def complete(self) -> Answer:
        """The whole answer, several blocks of which come together."""
        return await pipeline(self, self.policy).complete(replace(request(), stream_interval=16), uncharged())  # type: ignore[arg-type]


def request(timeout_s: float = 60.0) -> ReplicaRequest:
    return ReplicaRequest("id", Static(), SamplingParams(seed=7), 6, timeout_s, Arrival.now(), token_ids=(1, 2, 3))


@pytest.mark.parametrize(
    ("scripts", "blocks", "reasons"),
    [
        ([[FIRST, SECOND, LAST]], [0], []),
        ([[LOST], [FIRST, SECOND, LAST]], [0, 0], ["replica_lost"]),
        ([[FIRST, SECOND, LOST], [LAST]], [0, 2], ["replica_lost"]),
        ([[FIRST, SECOND, STOPPING], [LAST]], [0, 2], ["replica_stopping"]),
        ([[FIRST, SECOND, FAILED], [LAST]], [0, 2], ["engine_failed"]),
        ([[FIRST, LOST], [SECOND, LOST], [LOST], [LAST]], [0, 1, 2, 2], ["replica_lost"] * 3),
        ([[Failure(LOST)], [LOST], [FIRST, SECOND, LAST]], [0, 0, 0], ["replica_lost"] * 2),
        # the last block has its ending with it, so nothing is left to continue
        ([[FIRST, SECOND, LAST, LOST]], [0], []),
        ([[FIRST, SECOND, LAST, Failure(LOST)]], [0], []),
        ([[FIRST, SECOND, LAST, NotReady("gone")]], [0], []),
    ],
)
async def test_the_next_attempt_continues_after_the_blocks_that_came(scripts, blocks, reasons):
    attempts = Attempts(*scripts)
    assert await attempts.items() == WHOLE
    assert attempts.reasons == reasons
    first = attempts.requests[0]
    tokens, stats = ((), (10, 20), (10, 20, 11, 21)), (Stats(), FIRST.stats, SECOND.stats)
    for number, (attempt, count) in enumerate(zip(attempts.requests, blocks, strict=True)):
        assert attempt.request_id == f"id.{number}".removesuffix(".0")
        assert attempt.attempt == number
        assert attempt.resume == (Resume(tokens[count], count, stats[count]) if count else Resume())
        assert (attempt.sampling, attempt.token_ids, attempt.max_new_tokens, attempt.arrived) == (
            (first.sampling, (1, 2, 3), 6, first.arrived)
        )


async def test_an_ending_without_a_last_block_ends_the_answer():
    for script in ([FIRST, ENDING], [FIRST, ENDING, LOST]):
        attempts = Attempts(script)
        assert (await attempts.items(), attempts.reasons) == ([FIRST, ENDING], [])
    with pytest.raises(AssertionError, match="without an ending"):
        await Attempts([FIRST]).items()


async def test_a_stream_keeps_no_chunk_that_was_sent():
    """Its log-probabilities would take a megabyte for every few hundred tokens, until the answer ends."""
    chunk = replace(FIRST)  # answers of other tests hold `FIRST`
    attempts = Attempts([chunk, SECOND, None])
    references = sys.getrefcount(chunk)
    async with aclosing(attempts.answer()) as items:
        assert await anext(items) is chunk
        assert await anext(items) is SECOND
        assert sys.getrefcount(chunk) == references


@pytest.mark.parametrize("scripts", [[[FIRST, FAILED], [SECOND, FAILED], [LAST]], [[FAILED], [LOST], [FAILED]]])
async def test_a_second_failed_engine_quarantines_the_request(scripts):
    attempts = Attempts(*scripts)
    with pytest.raises(Quarantined, match="the engines of two replicas stopped while they decoded this request"):
        await attempts.items()
    assert attempts.reasons.count("engine_failed") == 1
    assert len(attempts.requests) == len(attempts.reasons) + 1


async def test_without_failovers_the_client_gets_the_engines_error():
    with pytest.raises(EngineFailed):
        await Attempts([FAILED], max_failovers=0).items()


async def test_a_further_attempt_goes_on_with_the_plan_that_has_begun():
    """Before the first block any plan of the preset may still be chosen."""
    plans = (MeasuredMode(Static()), MeasuredMode(Dynamic(0.5)))
    chunk = Chunk(0, "a", (10, 20), Stats(decoded_tokens=2, mode=Dynamic(0.5)))
    backend = Attempts([LOST], [chunk, LOST], [LAST, ENDING])
    first = replace(request(), plans=plans)
    async with aclosing(pipeline(backend, backend.policy).stream(first, uncharged())) as items:  # type: ignore[arg-type]
        assert [item async for item in items]
    attempts = [(attempt.mode, attempt.plans) for attempt in backend.requests]
    assert attempts == [(Static(), plans), (Static(), plans), (Dynamic(0.5), ())]


async def test_the_backend_gets_every_error_of_an_attempt():
    attempts = Attempts([FIRST, LOST], [FAILED], [SECOND, LAST])
    assert await attempts.items() == WHOLE
    assert attempts.errors == [LOST, FAILED.error]


@pytest.mark.parametrize("max_failovers", [0, 1, 3])
async def test_lost_attempts_are_limited(max_failovers):
    attempts = Attempts(*[[LOST]] * 9, max_failovers=max_failovers)
    with pytest.raises(ReplicaLost, match="gone") as raised:
        await attempts.items()
    assert raised.value.status == 503
    assert len(attempts.requests) == len(attempts.reasons) + 1 == max_failovers + 1


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
async def test_an_error_that_every_replica_would_give_ends_the_request(error):
    for script in ([FIRST, error], [error]):
        attempts = Attempts(script)
        with pytest.raises(type(error)):
            await attempts.items()
        assert (len(attempts.requests), attempts.reasons) == (1, [])


async def test_refusals_of_stopping_replicas_and_full_queues_do_not_count_as_lost_attempts():
    """A broken replica refuses at once and so looks idle. An admitted request waits for a full queue."""
    attempts = Attempts(*[[STOPPING]] * 20, [FIRST, ENDING], max_failovers=1)
    assert await attempts.items() == [FIRST, ENDING]
    assert attempts.reasons == ["replica_stopping"] * 20
    full = Failure(QueueFull("full"))
    attempts = Attempts([FIRST, LOST], *[[full]] * 9, [Ending("length", 5, 2, Stats())], max_failovers=1)
    assert (await attempts.items())[0] == FIRST
    assert attempts.reasons == ["replica_lost"] + ["queue_full"] * 9


async def test_pauses_grow_to_a_limit_and_end_at_the_deadline(monkeypatch):
    now, pauses = 1000.0, list[float]()

    async def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds
        pauses.append(seconds)

    monkeypatch.setattr(failover.asyncio, "sleep", sleep)
    monkeypatch.setattr(data, "time", SimpleNamespace(monotonic=lambda: now))
    await Attempts(*[[STOPPING]] * 7, [ENDING], pause_s=0.05).items()
    assert pauses == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    attempts = Attempts(*[[STOPPING]] * 99, pause_s=0.05)
    with pytest.raises(ReplicaStopping):
        await attempts.items(0.25)
    assert len(attempts.reasons) == 2  # 0.05 + 0.1 s are past, 0.2 more would be too late


async def test_a_whole_answer_continues_after_the_last_chunk():
    attempts = Attempts([FIRST, LOST], [SECOND, Failure(LOST)], [LAST])
    answer = await attempts.complete()
    assert (answer.text, answer.token_ids, answer.ending) == ("abc", (10, 20, 11, 21, 12, 22), ENDING)
    assert [attempt.resume.num_blocks for attempt in attempts.requests] == [0, 1, 2]


@pytest.mark.parametrize("scripts", [[[FIRST, None]], [[FIRST, LOST], [SECOND, None]]])
@pytest.mark.parametrize("cancels", [False, True])
async def test_a_client_that_leaves_ends_the_open_attempt(scripts, cancels):
    attempts = Attempts(*scripts)
    items = attempts.answer()
    assert [await anext(items) for _ in scripts] == [FIRST, SECOND][: len(scripts)]
    assert attempts.open == 1
    if cancels:
        await cancel_next(items)
    await items.aclose()
    assert attempts.open == 0
    assert len(attempts.requests) == len(scripts)


async def test_a_client_that_leaves_in_a_pause_ends_the_request():
    attempts = Attempts([FIRST, LOST], pause_s=10.0)
    items = attempts.answer()
    await anext(items)
    await cancel_next(items)
    await items.aclose()
    assert len(attempts.requests) == 1


async def cancel_next(items: AnswerStream) -> None:
    task = asyncio.ensure_future(anext(items))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


class TestWeightUpdates:
    async def test_a_replica_with_older_weights_is_tried_again(self):
        behind = Failure(WeightsBehind("too old", retry_after=1.0))
        attempts = Attempts(*[[behind]] * 5, [FIRST, SECOND, LAST])
        assert await attempts.items() == WHOLE
        assert attempts.reasons == ["weights_behind"] * 5

    async def test_an_answer_of_which_nothing_was_sent_begins_again(self):
        attempts = Attempts([CHANGED], [FIRST, SECOND, LAST])
        assert await attempts.items() == WHOLE
        assert attempts.reasons == ["weights_changed"]
        attempts = Attempts([FIRST, CHANGED], [FIRST, SECOND, LAST])
        assert (await attempts.complete()).token_ids == (10, 20, 11, 21, 12, 22)
        assert attempts.requests[1].resume == Resume()

    async def test_an_answer_of_which_a_part_was_sent_ends(self):
        attempts = Attempts([FIRST, CHANGED], [LAST])
        with pytest.raises(WeightsChanged):
            await attempts.items()
        assert len(attempts.requests) == 1

    async def test_every_attempt_names_the_newest_weights_and_those_of_the_first_block(self):
        weights = [Weights(3, "a", "m"), Weights(4, "b", "m")]
        attempts, newest = Attempts([replace(FIRST, version=3), LOST], [LAST]), iter(weights)
        attempts.policy = FailoverPolicy(3, newest_weights=lambda: next(newest))
        assert len(await attempts.items()) == 3
        assert [attempt.weights for attempt in attempts.requests] == weights
        assert [attempt.resume.version for attempt in attempts.requests] == [0, 3]
