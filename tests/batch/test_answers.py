"""Answers of a batch: those of the service, errors beside them, engines just full, and lost engines started again."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from service.batch import replicas as module
from service.batch.answers import LineAnswers
from service.batch.lines import BatchLine, parsed_lines
from service.batch.replicas import BatchReplicas
from service.engine import EngineDeps
from service.errors import CheckpointError, MrpServeError
from service.replica.replica import Replica
from service.settings.settings import Settings
from tests.engine.helpers import CHEAP_ROWS
from tests.gateway.engines import EngineGate, failing
from tests.gateway.helpers import eventually
from tests.replicas import load_replica
from tests.tiny import GOLDEN

SETTINGS = Settings(model=str(GOLDEN / "sdar-mrp-random-a"), device="cpu", max_num_seqs=4, kv_cache_tokens=2048)
PROMPT = {"prompt_token_ids": [5, 6, 7], "max_new_tokens": 12, "mode": "static", "seed": 1}


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Replica]:
    """The replicas that have been started, in this process. `deps` are those of the next ones."""
    replicas: list[Replica] = []

    async def start_replica(name: str, settings: Settings) -> Replica:
        deps = DEPS.pop(0) if DEPS else EngineDeps(costs=CHEAP_ROWS)
        if isinstance(deps, MrpServeError):
            raise deps
        replicas.append(load_replica(name, settings, deps))
        return replicas[-1]

    monkeypatch.setattr(module, "start_replica", start_replica)
    monkeypatch.setattr(module, "tune_interpreter", lambda: None)
    return replicas


#: dependencies, or errors, of the replicas that are started next
DEPS: list[Any] = []


@pytest.fixture(autouse=True)
def _no_deps() -> Iterator[None]:
    DEPS.clear()
    yield
    DEPS.clear()


@pytest.fixture
async def replicas(started: list[Replica]) -> AsyncIterator[BatchReplicas]:
    running = await BatchReplicas.start([SETTINGS])
    yield running
    running.close()


async def run(replicas: BatchReplicas, *lines: dict[str, Any], defaults: dict[str, Any] | None = None) -> list[Any]:
    outputs: list[Any] = []
    answers = LineAnswers(replicas, SETTINGS)
    await answers.run(parsed_lines(lines, defaults or {}), outputs.append)
    assert sorted(output["line"] for output in outputs) == list(range(1, len(lines) + 1))
    json.dumps(outputs)
    return sorted(outputs, key=lambda output: output["line"])


async def test_every_api_answers_as_its_route_does(replicas: BatchReplicas) -> None:
    model = replicas.card.name
    plain, completion, score = await run(
        replicas,
        PROMPT,
        {"custom_id": "b", "url": "/v1/completions", "body": {"model": model, "prompt": [5, 6, 7], "max_tokens": 12,
         "mode": "static", "n": 3, "temperature": 1.0, "seed": 4}},
        {"custom_id": "c", "url": "/v1/score", "body": {"model": model, "items": [{"prompt_token_ids": [5, None]}],
         "label_token_ids": [3, 4]}},
    )  # fmt: skip
    body = plain["response"]["body"]
    assert plain["error"] is None
    assert plain["response"]["status_code"] == 200
    assert plain["id"] == f"batch_req_{plain['response']['request_id']}"
    assert (body["mode"], body["seed"], body["usage"]["completion_tokens"]) == ("static", 1, 12)
    assert len(completion["response"]["body"]["choices"]) == 3
    assert len(score["response"]["body"]["data"][0]["positions"][0]["scores"]) == 2


async def test_answers_do_not_depend_on_the_lines_beside_them(replicas: BatchReplicas) -> None:
    lines = [PROMPT | {"temperature": 1.0, "seed": seed, "mode": "dynamic", "threshold": 0.1} for seed in range(20)]
    together = await run(replicas, *lines)
    for line, output in zip(lines[:4], together, strict=False):
        [alone] = await run(replicas, line)
        assert alone["response"]["body"]["token_ids"] == output["response"]["body"]["token_ids"]


#: lines with their status, the code of their error and a part of its message
WRONG: list[tuple[dict[str, Any], int, str, str]] = [
    ({}, 422, "invalid_request", "exactly one of prompt"),
    ({"prompt_token_ids": [5] * 5000}, 422, "prompt_too_long", "maximum context length is 2048 tokens"),
    ({"prompt_token_ids": [5], "stream": True}, 422, "invalid_request", "a batch has whole answers"),
    ({"prompt_token_ids": [5], "quality": "fast"}, 422, "quality_not_available", "calibrate"),
    ({"url": "/v1/completions", "body": {"model": "m", "prompt": "x"}}, 404, "unknown_model", "model is 'm'"),
    ({"url": "/nowhere", "body": {}}, 422, "invalid_request", "url is '/nowhere'"),
    ({"prompt_token_ids": [5], "regex": "(a"}, 422, "constraint_not_available", "tokenizer"),
]


async def test_a_wrong_line_has_its_error_and_the_others_their_answers(replicas: BatchReplicas) -> None:
    before, *wrong, after = await run(replicas, PROMPT, *(line for line, *_ in WRONG), PROMPT)
    assert before["error"] is after["error"] is None
    for (line, status, code, reason), output in zip(WRONG, wrong, strict=True):
        assert (output["response"]["status_code"], output["error"]["code"]) == (status, code), line
        assert reason in output["error"]["message"]
        assert output["response"]["body"]["error"]["message"] == output["error"]["message"]


async def test_lines_are_read_only_when_an_engine_has_room(started: list[Replica]) -> None:
    held = EngineGate()
    DEPS.append(held.deps)
    replicas = await BatchReplicas.start([SETTINGS])
    read: list[int] = []

    def lines() -> Iterator[BatchLine]:
        for number in range(1, 101):
            read.append(number)
            yield BatchLine(number, f"line-{number}", body=dict(PROMPT))

    outputs: list[Any] = []
    running = asyncio.create_task(LineAnswers(replicas, SETTINGS).run(lines(), outputs.append))
    await held.holds()
    assert replicas.slots == 10
    await eventually(lambda: len(read) > replicas.slots)
    await asyncio.sleep(0.05)
    assert len(read) == replicas.slots + 1
    held.release()
    await running
    assert len(outputs) == 100
    replicas.close()


async def test_a_line_with_more_answers_than_slots_is_answered(replicas: BatchReplicas) -> None:
    body = {"model": replicas.card.name, "prompt": [5], "max_tokens": 4, "n": 11, "mode": "static"}
    line = {"url": "/v1/completions", "body": body}
    outputs = await run(replicas, line, PROMPT, line)
    assert [output["error"] for output in outputs] == [None] * 3
    assert len(outputs[0]["response"]["body"]["choices"]) == 11


async def test_a_lost_engine_starts_again_and_every_line_has_its_answer_once(started: list[Replica]) -> None:
    DEPS.append(failing(after=30))
    replicas = await BatchReplicas.start([SETTINGS])
    lines = [PROMPT | {"seed": seed, "temperature": 1.0} for seed in range(40)]
    outputs = await run(replicas, *lines)
    assert len(started) == 2
    assert [output["error"] for output in outputs] == [None] * 40
    again = await run(replicas, *lines)
    bodies = [[output["response"]["body"]["token_ids"] for output in each] for each in (outputs, again)]
    assert bodies[0] == bodies[1]
    replicas.close()


async def test_an_engine_that_does_not_start_again_ends_the_batch_without_errors_for_lines(
    started: list[Replica],
) -> None:
    DEPS.extend([failing(after=30), CheckpointError("the folder is gone")])
    replicas = await BatchReplicas.start([SETTINGS])
    outputs: list[Any] = []
    lines = parsed_lines([PROMPT] * 200, {})
    with pytest.raises(CheckpointError, match="the folder is gone"):
        await LineAnswers(replicas, SETTINGS).run(lines, outputs.append)
    assert 0 < len(outputs) < 200
    assert [output["error"] for output in outputs] == [None] * len(outputs)
    replicas.close()


async def test_two_replicas_share_the_lines_and_one_takes_over(started: list[Replica]) -> None:
    DEPS.extend([failing(after=10), None, CheckpointError("the device is gone")])
    replicas = await BatchReplicas.start([SETTINGS] * 2)
    assert replicas.slots == 20
    outputs = await run(replicas, *[PROMPT] * 60)
    assert [output["error"] for output in outputs] == [None] * 60
    assert len(started) == 2
    replicas.close()


async def test_errors_of_loading_are_raised(started: list[Replica]) -> None:
    DEPS.extend([None, CheckpointError("no such folder")])
    with pytest.raises(CheckpointError, match="no such folder"):
        await BatchReplicas.start([SETTINGS] * 2)


async def test_an_error_of_writing_ends_the_batch(replicas: BatchReplicas) -> None:
    def write(_: object) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        await LineAnswers(replicas, SETTINGS).run(parsed_lines([PROMPT] * 50, {}), write)
