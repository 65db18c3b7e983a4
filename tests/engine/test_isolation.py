"""An unexpected error in one request's bookkeeping ends only that request. The engine and other requests go on."""

import gc
import random

import pytest

from service.decode.canvas import Canvas
from service.decode.modes import Direct
from service.decode.policy import Decoding
from service.engine import BlockEvent, Engine, EngineConfig, GenerationRequest, StepReport
from service.engine.running_request import RunningRequest
from service.errors import DecodingFailed
from service.model import Checkpoint
from tests.engine.helpers import audit, events_of, random_requests, request_of
from tests.tiny import tiny_checkpoint

#: when the faulty policy raises: before its first query, after a reading of the backbone, after one of MRP
MOMENTS = ("at its start", "after the backbone", "after MRP", "in its second block")


class Fault(Exception):
    """An unexpected error."""


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    return tiny_checkpoint(4, block_size=4)


@pytest.fixture(params=MOMENTS)
def faulty(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    moment, canvases = request.param, []

    def policy(canvas: Canvas, mode: Direct) -> Decoding:
        canvases.append(canvas)
        if moment == MOMENTS[0]:
            raise Fault("a prompt may stand here")
        decoding = decode(mode, canvas)
        query = next(decoding)
        while True:
            readings = yield query
            refined = query.__class__.__name__ == "Refine"
            if moment == MOMENTS[1 + refined] or (moment == MOMENTS[3] and len(canvases) > 1):
                raise Fault("a prompt may stand here")
            try:
                query = decoding.send(readings)
            except StopIteration:
                return

    decode = Direct.decode
    monkeypatch.setattr(Direct, "decode", lambda mode, canvas: policy(canvas, mode))


def bad(name: str) -> GenerationRequest:
    return request_of(name, [1, 2, 3, 4, 5], Direct(2), 20)


@pytest.mark.usefixtures("faulty")
def test_the_request_ends_with_an_error_and_the_others_as_ever(
    checkpoint: Checkpoint, caplog: pytest.LogCaptureFixture
) -> None:
    healthy = [
        request
        for request in random_requests(random.Random(5), checkpoint, 16, 12)
        if not isinstance(request.mode, Direct)
    ]
    engine = Engine(checkpoint)
    wanted = events_of(engine, healthy)
    mixed = [*healthy[:6], bad("bad"), *healthy[6:]]
    events_by_id = events_of(engine, mixed)
    *_, last = events_by_id.pop("bad")
    assert isinstance(last.error, DecodingFailed)
    assert last.finish_reason == "abort"
    for name, events in events_by_id.items():
        assert [event.token_ids for event in events] == [event.token_ids for event in wanted[name]]
    assert engine.state().kv_pages_used == engine.state().num_running == 0
    audit(engine._pages, [])
    assert (
        "the decoding of a request failed: tests.engine.test_isolation.Fault in tests.engine.test_isolation, line"
        in caplog.text
    )
    assert "a prompt may stand here" not in caplog.text + last.error.message


class FailingObserver:
    def on_step(self, report: StepReport) -> None:
        raise Fault

    def on_event(self, request: GenerationRequest, event: BlockEvent, steps: object) -> None:
        raise Fault


def test_an_observer_that_fails_changes_nothing(checkpoint: Checkpoint) -> None:
    requests = random_requests(random.Random(6), checkpoint, 8)
    observed, unobserved = Engine(checkpoint, observer=FailingObserver()), Engine(checkpoint)
    assert [completion.token_ids for completion in observed.generate(requests)] == [
        completion.token_ids for completion in unobserved.generate(requests)
    ]


@pytest.mark.parametrize("ahead", [False, True])
def test_a_finished_request_is_freed_without_garbage_collection(checkpoint: Checkpoint, ahead: bool) -> None:
    """Collections of everything are rare (`tune_interpreter`), so a cycle would stay for long."""
    engine = Engine(checkpoint, EngineConfig(async_scheduling=ahead, kv_cache_tokens=4096))
    requests = random_requests(random.Random(9), checkpoint, 24)
    gc.collect()
    gc.disable()
    try:
        engine.generate(requests[:16])
        for request in requests[16:]:
            engine.submit(request)
        for _ in range(3):
            engine.step()
        engine.abort_running()
        for _ in range(9):  # the rest of the forwards that were under way
            engine.step()
        assert [running for running in gc.get_objects() if isinstance(running, RunningRequest)] == []
    finally:
        gc.enable()
