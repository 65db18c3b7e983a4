"""The order of forwards and waits on the device, and failures while a step ahead is under way."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from msgspec import structs

from service.decode.mode import DecodingMode
from service.decode.modes import Direct, Dynamic, Remask, Sequential, Speculative, Static
from service.engine import BlockEvent, Engine, EngineConfig, EngineDeps, GenerationRequest, SamplingParams
from service.model import LoadOptions, load_checkpoint
from tests.engine.helpers import DEAR, events_of
from tests.tiny import GOLDEN, GOLDEN_NAMES
from tests.vcuda.decoding import ALL_ON, on_device, waits
from tests.vcuda.device import Counts

NAME = GOLDEN_NAMES[0]
SAMPLED, FILTERED = SamplingParams(0.7, seed=3), SamplingParams(0.7, 0.9, 20, seed=3)
#: modes and parameters of which a request names its next rows before its predictions are read
PACED: dict[str, list[tuple[DecodingMode, SamplingParams]]] = {
    "static": [(Static(), SamplingParams())],
    "static, 2 tokens": [(Static(2), SamplingParams())],
    "sequential": [(Sequential(), SamplingParams())],
    "direct": [(Direct(2), SamplingParams())],
    "auto without drafts": [(Speculative("auto"), SamplingParams())],
    "sampled": [(Static(), SAMPLED), (Direct(2), SAMPLED), (Sequential(), SAMPLED)],
    "filtered": [(Static(), FILTERED), (Direct(2), FILTERED), (Static(2), FILTERED)],
}
PACED["mixed"] = [pairs[-1] for pairs in PACED.values()]
UNPACED: dict[str, DecodingMode] = {"dynamic": Dynamic(0.9), "remask": Remask(0.5), "speculative": Speculative(2)}

Answers = dict[str, tuple[tuple[int, ...], str | None]]


def requests_of(pairs: Sequence[tuple[DecodingMode, SamplingParams]], count: int, tokens: int = 24):
    """Requests with the modes and parameters in turn; their prompts begin alike."""
    return [
        GenerationRequest(
            str(number),
            (*range(40, 52), 60 + number),
            pairs[number % len(pairs)][0],
            structs.replace(pairs[number % len(pairs)][1], seed=number),
            tokens,
        )
        for number in range(count)
    ]


def engine_on_device(**limits):
    return Engine(on_device(NAME), replace(ALL_ON, **limits), deps=EngineDeps(costs=DEAR))


def answers(events: dict[str, list[BlockEvent]]) -> Answers:
    return {
        name: (tuple(token for event in parts for token in event.token_ids), parts[-1].finish_reason)
        for name, parts in events.items()
    }


def expected_answers(requests: Sequence[GenerationRequest], folder=GOLDEN / NAME) -> Answers:
    """The answers of an engine on the CPU that reads each forward before the next one begins."""
    host = load_checkpoint(folder, LoadOptions(torch.float32, "cpu"))
    config = EngineConfig(kv_cache_tokens=4096, async_scheduling=False)
    return answers(events_of(Engine(host, config, deps=EngineDeps(costs=DEAR)), requests))


def decoded(engine, device, requests):
    """Decodes the requests. -> their answers, and the later replays of each wait until the first request has ended."""
    device.counts = Counts()
    events: dict[str, list[BlockEvent]] = {request.request_id: [] for request in requests}
    for request in requests:
        engine.submit(request)
    end = None
    while engine.has_work:
        before = len(device.counts.later_replays)
        for event in engine.step():
            events[event.request_id].append(event)
            if event.finish_reason is not None and end is None:
                end = before
    return answers(events), device.counts.later_replays[:end]


@pytest.mark.parametrize(
    ("kind", "count"), [(kind, count) for kind in PACED for count in (1, 8) if (kind, count) != ("mixed", 1)]
)
def test_the_next_forward_is_launched_before_each_wait(device, kind, count):
    """The second time, since forwards without a graph are not among the replays."""
    requests, engine = requests_of(PACED[kind], count), engine_on_device()
    expected = expected_answers(requests)
    assert answers(events_of(engine, requests)) == expected
    tokens, later_replays = decoded(engine, device, requests)
    assert tokens == expected
    assert len(later_replays) >= 6
    assert min(later_replays) >= 1
    assert waits(device.counts) == []


@pytest.mark.parametrize("count", [1, 8])
@pytest.mark.parametrize("kind", UNPACED)
def test_a_mode_without_a_pace_reads_each_forward_before_the_next_one(device, kind, count):
    requests, engine = requests_of([(UNPACED[kind], SamplingParams())], count), engine_on_device()
    expected = expected_answers(requests)
    assert answers(events_of(engine, requests)) == expected
    tokens, later_replays = decoded(engine, device, requests)
    assert tokens == expected
    assert len(later_replays) >= 6
    assert set(later_replays) == {0}
