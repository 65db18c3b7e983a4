"""Two halves of the requests in turn: the device always has a forward to compute, and every token stays the same."""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from service.decode.modes import Direct, Remask, Speculative, Static
from service.decode.policy import Prediction
from service.engine import BlockEvent, EngineDeps
from service.engine.drafting.costs import Curve, StepCosts
from service.engine.drafting.planner import DraftPlanner
from service.engine.forward.model_forward import Network
from service.engine.forward.rows import Row
from service.engine.forward.runner import CheckpointRunner
from service.engine.micro_batch import TwoBatchOverlap
from tests.engine.helpers import checked, events_of, random_requests, request_of
from tests.runners import RunnerWrapper, engine_over
from tests.thinned import fast_only
from tests.tiny import tiny_checkpoint

#: forwards cost the same whatever their rows
COSTS = StepCosts(Curve(((1, 1.0), (64, 1.5))), Curve(((1, 0.1), (64, 0.2))))


class Device(RunnerWrapper):
    """An asynchronous device: a queue of forwards. A forward is computed when the host asks for it or for a later one.

    `queued`: forwards behind the one that the host waits for, at each time that it waits.
    """

    def __init__(self, runner: CheckpointRunner) -> None:
        super().__init__(runner)
        self.queue: list[Callable[[], None]] = []
        self.queued: list[int] = []

    def begin(self, network: Network, rows: Sequence[Row]) -> Callable[[], list[Prediction]]:
        predictions: list[Prediction] = []
        work = lambda: predictions.extend(self.runner.begin(network, rows)())  # noqa: E731 - identified in the queue
        self.queue.append(work)

        def wait() -> list[Prediction]:
            while work in self.queue:
                self.queue.pop(0)()
            self.queued.append(len(self.queue))
            return predictions

        return wait


def answers(events: dict[str, list[BlockEvent]]) -> dict[str, tuple[tuple[int, ...], str | None]]:
    return {
        name: (tuple(token for event in request_events for token in event.token_ids), request_events[-1].finish_reason)
        for name, request_events in events.items()
    }


@pytest.mark.parametrize("seed", fast_only({1, 2}.__contains__, range(6)))
def test_tokens_are_the_same_with_and_without(seed: int) -> None:
    checkpoint = tiny_checkpoint(seed)
    requests = random_requests(random.Random(seed), checkpoint, 13)
    tokens = {}
    for overlap in ("on", "off"):
        limits = {"overlap": overlap, "max_running": 7, "max_rows": 24, "max_prefill_tokens": 8}
        engine, device = engine_over(Device, checkpoint, EngineDeps(costs=COSTS), **limits)
        tokens[overlap] = answers(events_of(engine, requests))
        assert not device.queue
        assert engine.state().num_running == 0
    assert tokens["on"] == tokens["off"]


@pytest.mark.parametrize("mode", [Static(), Direct(2), Remask(0.3), Speculative(2), Speculative(2, 3)])
def test_the_device_has_a_forward_whenever_the_host_reads_one(mode) -> None:
    engine, device = engine_over(Device, tiny_checkpoint(1), EngineDeps(costs=COSTS), overlap="on")
    for number in range(6):
        engine.submit(request_of(str(number), [number + 1], mode, 40))
    while engine.state().num_running < 6:
        engine.step()
    device.queued.clear()
    while engine.state().num_running > 1:
        ended = engine.step()
        if any(event.finish_reason for event in ended):
            break
        assert len(device.queue) == 1  # the other half's; this half's next forward begins with the next step
    assert len(device.queued) > 6
    assert all(queued == 1 for queued in device.queued)


def test_a_request_may_be_aborted_while_its_forward_is_under_way() -> None:
    checkpoint, mode = tiny_checkpoint(2), Speculative(2)
    engine, device = engine_over(Device, checkpoint, overlap="on")
    requests = [request_of(str(number), [number + 1], mode, 24) for number in range(5)]
    alone, _ = engine_over(Device, checkpoint, overlap="off")
    expected = answers(events_of(alone, requests))
    for request in requests:
        engine.submit(request)
    events = engine.step()
    assert device.queue
    for number in (0, 3, 4):  # of both halves
        engine.abort(str(number))
    while engine.has_work:
        events += engine.step()
    for number in (1, 2):
        request_events = [event for event in events if event.request_id == str(number)]
        assert answers({str(number): request_events})[str(number)] == expected[str(number)]
    assert engine.state().kv_pages_used == 0


@pytest.mark.parametrize("seed", fast_only({2}.__contains__, range(3)))
def test_every_forward_is_right_where_prefixes_are_shared_and_requests_leave(seed: int) -> None:
    """Every reading is compared with a recomputation of its whole sequence."""
    rng, checkpoint = random.Random(seed), tiny_checkpoint(seed)
    limits = {"overlap": "on", "max_running": 5, "max_rows": 20, "max_prefill_tokens": 4, "kv_cache_tokens": 512}
    engine, runner = checked(checkpoint, COSTS, **limits)
    drawn = random_requests(rng, checkpoint, 8)
    copies = [replace(request, request_id=f"{request.request_id}-{turn}") for turn in range(3) for request in drawn]
    for request in copies:
        engine.submit(request)
    while engine.has_work:
        engine.step()
        if rng.random() < 0.1:
            engine.abort(rng.choice(copies).request_id)
    assert runner.compared > 100
    assert engine.state().kv_pages_used == 0


@pytest.mark.parametrize(
    ("setting", "asynchronous", "host", "running", "turns"),
    [
        ("on", False, 0.0, 2, 2),
        ("on", True, 9.0, 1, 1),  # one request has no halves
        ("off", True, 9.0, 64, 1),
        ("auto", False, 9.0, 64, 1),  # a CPU
        ("auto", True, 9.0, 8, 1),  # few
        ("auto", True, 0.001, 64, 1),  # 64 rows cost hardly more than 32, and the host takes little
        ("auto", True, 0.1, 64, 2),  # the host takes four times the forward
    ],
)
def test_when_halves_are_taken(setting, asynchronous, host, running, turns) -> None:
    overlap = TwoBatchOverlap(setting, DraftPlanner(lambda: COSTS, 256), asynchronous=asynchronous)
    for _ in range(200):
        overlap.record(host * running, running)
    assert overlap.micro_batches(running) == turns
