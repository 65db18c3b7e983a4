"""A forward that runs out of memory: requests that end, requests that go on, and that nothing is left behind."""

import random
import weakref
from collections.abc import Callable, Sequence

import pytest
import torch

from service.decode.block import Block
from service.decode.modes import Direct, Speculative
from service.decode.policy import Prediction
from service.engine import BlockEvent, Engine
from service.engine.forward.model_forward import Network
from service.engine.forward.oom_backoff import OomBackoff
from service.engine.forward.pending import Pending, done
from service.engine.forward.rows import Row
from service.engine.forward.runner import ModelRunner
from service.errors import EngineFailed, OutOfMemory
from service.model import Checkpoint
from tests.async_engine import AsyncEngine
from tests.engine.helpers import events_of, random_requests, request_of
from tests.predictions import prediction_of
from tests.runners import RunnerWrapper, engine_over

PROMPT = (5, 6, 7, 8, 9, 10)
CPU_MESSAGE = (
    "[enforce fail at alloc_cpu.cpp:116] err == 0. DefaultCPUAllocator: can't allocate memory: "
    "you tried to allocate 4096000000000 bytes. Error code 12 (Cannot allocate memory)"
)

Fits = Callable[[Sequence[Row]], bool]


class ScarceRunner(RunnerWrapper):
    """Does what ModelRunner does for rows that fit and raises for others; counts the forwards that did not fit."""

    def __init__(self, runner: ModelRunner, evaluates: Fits | None = None, refines: Fits | None = None) -> None:
        super().__init__(runner)
        self.evaluates, self.refines, self.failures = evaluates, refines, 0

    def evaluate(self, rows: Sequence[Row]) -> list[Prediction]:
        self.check(self.evaluates, rows)
        return super().evaluate(rows)

    def refine(self, rows: Sequence[Row]) -> list[Prediction]:
        self.check(self.refines, rows)
        return super().refine(rows)

    def check(self, fits: Fits | None, rows: Sequence[Row]) -> None:
        if fits is not None and not fits(rows):
            self.failures += 1
            raise torch.OutOfMemoryError("CUDA out of memory.")


def scarce(
    checkpoint: Checkpoint, evaluates: Fits | None = None, refines: Fits | None = None, **limits: int
) -> tuple[Engine, ScarceRunner]:
    return engine_over(lambda runner: ScarceRunner(runner, evaluates, refines), checkpoint, **limits)


def tokens(events: Sequence[BlockEvent]) -> tuple[int, ...]:
    return tuple(token for event in events for token in event.token_ids)


class Forward:
    """A runner whose forwards are a function of their rows."""

    def __init__(self, forward: Callable[[Sequence[Row]], list[Prediction]]) -> None:
        self.forward = forward

    def begin(self, network: Network, rows: Sequence[Row]) -> Pending:
        return done(self.forward(rows))


class TestRowsThatFit:
    @staticmethod
    def row(index: int) -> Row:
        return Row(Block((1,)), index, (), writes_kv=False)

    def handles(
        self, count: int, fits: Callable[[list[int]], bool], backoff: OomBackoff | None = None
    ) -> tuple[list[int | None], list[list[int]]]:
        calls: list[list[int]] = []

        def forward(rows: Sequence[Row]) -> list[Prediction]:
            indices = [row.index for row in rows]
            if not fits(indices):
                raise torch.OutOfMemoryError
            calls.append(indices)
            return [prediction_of((), handle=index) for index in indices]

        backoff = backoff or OomBackoff(Forward(forward))
        backoff.runner = Forward(forward)
        pending = backoff.begin("backbone", [self.row(index) for index in range(count)])
        handles = [prediction.handle for prediction in pending()]
        assert [index for index, handle in enumerate(handles) if handle is None] == list(pending.too_large)
        return handles, calls

    def test_halves_in_order_when_there_is_less(self) -> None:
        assert self.handles(5, lambda rows: len(rows) <= 2) == ([0, 1, 2, 3, 4], [[0, 1], [2, 3], [4]])

    @pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA"), RuntimeError(CPU_MESSAGE), MemoryError()])
    def test_a_row_that_does_not_fit_is_named(self, error: Exception) -> None:
        def forward(rows: Sequence[Row]) -> list[Prediction]:
            raise error

        assert OomBackoff(Forward(forward)).begin("mrp", [self.row(0)]).too_large == [0]

    def test_the_limit_of_rows_is_remembered_and_doubled_later(self) -> None:
        room, backoff = 10, OomBackoff(Forward(lambda rows: []))

        def step() -> list[int]:
            handles, calls = self.handles(64, lambda rows: len(rows) <= room, backoff)
            assert handles == list(range(64))
            return [len(call) for call in calls]

        assert [step() for _ in range(4)] == [[8] * 8] * 4
        room = 1000
        for _ in range(700):
            last = step()
        assert last == [64]

    def test_a_row_that_never_fits_takes_no_other_with_it_and_makes_no_others_smaller(self) -> None:
        backoff = OomBackoff(Forward(lambda rows: []))
        handles, _ = self.handles(8, lambda rows: 4 not in rows, backoff)
        assert handles == [0, 1, 2, 3, None, 5, 6, 7]
        assert self.handles(8, lambda rows: True, backoff)[1] == [[*range(8)]]

    def test_the_cpus_own_words(self) -> None:
        def forward(rows: Sequence[Row]) -> list[Prediction]:
            torch.empty(2**60, dtype=torch.uint8)
            return []

        assert OomBackoff(Forward(forward)).begin("backbone", [self.row(0)]).too_large == [0]

    def test_the_failed_forwards_tensors_are_free_before_the_next_try(self) -> None:
        tensors, alive = weakref.WeakSet[torch.Tensor](), list[int]()

        def forward(rows: Sequence[Row]) -> list[Prediction]:
            alive.append(len(tensors))
            tensors.add(tensor := torch.zeros(1))
            if len(rows) > 1:
                raise torch.OutOfMemoryError
            return [prediction_of((), handle=tensor.shape)] * len(rows)

        OomBackoff(Forward(forward)).begin("backbone", [self.row(0), self.row(1)])()
        assert alive == [0, 0, 0]


class TestEngine:
    @pytest.mark.parametrize("ahead", [False, True])
    @pytest.mark.parametrize("forward", ["evaluate", "refine"])
    def test_a_request_that_never_fits_ends_with_an_error_and_others_continue(
        self, checkpoint: Checkpoint, forward: str, ahead: bool
    ) -> None:
        """What never fits: rows from the sixth block on. Every mode, all in one batch."""
        requests = [request_of(f"short {n}", PROMPT, Speculative(1 + n % 4), tokens=10) for n in range(4)]
        requests += [request_of(f"long {n}", PROMPT, Direct(1 + n), tokens=40) for n in range(2)]
        wanted = {done.request_id: done.token_ids for done in Engine(checkpoint).generate(requests)}

        def fits(rows: Sequence[Row]) -> bool:
            return all(row.index < 5 for row in rows)

        engine, _ = scarce(checkpoint, async_scheduling=ahead, **{f"{forward}s": fits})
        events = events_of(engine, requests)
        for request in requests:
            last = events[request.request_id][-1]
            if request.request_id.startswith("short"):
                assert tokens(events[request.request_id]) == wanted[request.request_id]
                assert last.error is None
            else:
                assert isinstance(last.error, OutOfMemory)
                assert (last.error.status, last.error.retry_after, last.finish_reason) == (503, 1.0, "abort")
                sent = tokens(events[request.request_id])
                assert 0 < len(sent) < 40
                assert sent == wanted[request.request_id][: len(sent)]
        assert engine.state().kv_pages_used == engine.state().num_running == 0

    def test_later_requests_are_right(self, checkpoint: Checkpoint) -> None:
        """On pages that the failed ones left behind, in an engine with no others."""
        requests = random_requests(random.Random(6), checkpoint, 12)
        wanted = Engine(checkpoint).generate(requests)
        rng = random.Random(1)

        def often(rows: Sequence[Row]) -> bool:
            return rng.random() < 0.7

        engine, runner = scarce(checkpoint, often, often, kv_cache_tokens=40, max_rows=16)
        failed = [events for events in events_of(engine, requests).values() if events[-1].error]
        assert 0 < len(failed) < 12
        runner.evaluates = runner.refines = None
        assert [done.token_ids for done in engine.generate(requests)] == [done.token_ids for done in wanted]
        assert engine.state().kv_pages_used == 0

    def test_generate_raises_it_when_all_have_ended(self, checkpoint: Checkpoint) -> None:
        engine, _ = scarce(checkpoint, lambda rows: rows[0].index < 3)
        with pytest.raises(OutOfMemory, match="ran out of memory in a step of this request"):
            engine.generate([request_of("x", PROMPT, tokens=20), request_of("y", PROMPT, tokens=4)])
        assert not engine.has_work


class TestWorker:
    async def test_the_stream_ends_with_the_error_and_the_replica_is_healthy(self, checkpoint: Checkpoint) -> None:
        engine, runner = scarce(checkpoint, lambda rows: rows[-1].index < 3)
        worker = AsyncEngine(engine)
        worker.start()
        try:
            stream = worker.generate(request_of("x", PROMPT, tokens=40))
            seen = [await anext(stream), await anext(stream)]
            with pytest.raises(OutOfMemory):
                await anext(stream)
            wanted = Engine(checkpoint).generate([request_of("x", PROMPT, tokens=40)])[0].token_ids
            assert tokens(seen) == wanted[: 3 * 4 - len(PROMPT)]
            assert worker.failure is None
            runner.evaluates = None
            again = [event async for event in worker.generate(request_of("x", PROMPT, tokens=40))]
            assert tokens(again) == wanted
        finally:
            worker.stop()

    async def test_any_other_error_stops_the_engine(self, checkpoint: Checkpoint) -> None:
        engine, _ = scarce(checkpoint, lambda rows: 1 // 0)  # type: ignore[arg-type, return-value]
        worker = AsyncEngine(engine)
        worker.start()
        with pytest.raises(EngineFailed, match="ZeroDivisionError"):
            await anext(worker.generate(request_of("x", PROMPT)))
        assert str(worker.failure).startswith("ZeroDivisionError in tests.engine.forward.test_oom_backoff, line ")
        worker.stop()
