"""/admin/pause, /continue, /sleep and /wake_up over several replicas: requests wait, and none is lost or wrong."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest

from service.errors import OutOfMemory
from service.gateway.pause import ServiceGenerationAnswer
from service.messages.replica_status import PauseState
from tests.gateway.generate.helpers import GENERATE, ask, frames, problem
from tests.gateway.helpers import assert_shape, eventually, page
from tests.gateway.weights.replicas import ADMIN, REQUEST, Replicas, update
from tests.other_weights import FIRST

Answers = dict[Path, list[int]]


async def post(http: httpx.AsyncClient, name: str, **fields: Any) -> dict[str, Any]:
    response = await http.post(f"/admin/{name}", json=fields, headers=ADMIN)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    assert_shape(ServiceGenerationAnswer, answer)
    return answer


async def states(http: httpx.AsyncClient) -> dict[str, Any]:
    response = await http.get("/admin/generation", headers=ADMIN)
    answer: dict[str, Any] = response.json()
    assert_shape(ServiceGenerationAnswer, answer)
    return answer


def state_of_all(*, paused: bool = False, sleep_level: int = 0) -> dict[str, Any]:
    """The answer of the routes if both replicas have this state."""
    state = {"paused": paused, "sleep_level": sleep_level}
    return {**state, "replicas": [{"replica": name, **state} for name in ("r0", "r1")]}


def send(http: httpx.AsyncClient, count: int = 4) -> list[asyncio.Task[dict[str, Any]]]:
    return [asyncio.ensure_future(ask(http, REQUEST)) for _ in range(count)]


def num_waiting(service: Replicas) -> int:
    return sum(replica.engine.state().num_waiting for replica in service.replicas)


@pytest.mark.parametrize(
    ("halt", "fields", "resume"),
    [
        ("pause", {}, "continue"),
        ("pause", {"mode": "wait"}, "continue"),
        ("sleep", {}, "wake_up"),
        ("sleep", {"level": 2}, "wake_up"),
    ],
)
async def test_requests_wait_and_are_answered_afterwards(steady, steady_http, answers, halt, fields, resume):
    """Some are under way, some come later. The service is healthy all the time."""
    http, before = steady_http, send(steady_http)
    sleep_level = fields.get("level", 1) if halt == "sleep" else 0
    answer = await post(http, halt, **fields)
    assert answer == await states(http) == state_of_all(paused=halt == "pause", sleep_level=sleep_level)
    during = send(http)
    running = sum(not request.done() for request in before)
    await eventually(lambda: sum(replica.snapshot().in_flight for replica in steady.replicas) == running + 4)
    health = await http.get("/health")
    assert (health.status_code, health.json()) == (200, {"status": "ok", "replicas_ready": 2})
    metrics = await page(http)
    assert metrics("mrp_paused", replica="r0") == (halt == "pause")
    assert metrics("mrp_sleep_level", replica="r1") == sleep_level
    assert not any(request.done() for request in during)
    assert await post(http, resume) == state_of_all()
    assert [(await request)["token_ids"] for request in (*before, *during)] == [answers[FIRST]] * 8


async def test_a_stream_continues_after_a_pause(steady_http, answers):
    stream = asyncio.ensure_future(frames(steady_http, REQUEST))
    for _ in range(3):
        await post(steady_http, "pause")
        await post(steady_http, "continue")
    *blocks, (last, _) = await stream
    assert last == "done"
    assert [token for _, block in blocks for token in block["token_ids"]] == answers[FIRST]


@pytest.mark.parametrize("level", [1, 2])
async def test_weights_that_come_in_sleep_answer_after_it(service, http, other, answers, level):
    """Pause and sleep hold until each is undone. A less deep sleep changes nothing."""
    await post(http, "pause")
    await post(http, "sleep", level=level)
    assert (await post(http, "sleep", level=1))["sleep_level"] == level
    await update(http, other, version=5)
    during = send(http)
    await eventually(lambda: num_waiting(service) == 4)
    assert await post(http, "wake_up") == state_of_all(paused=True)
    await eventually(lambda: num_waiting(service) == 4)
    await post(http, "continue")
    responses = [await request for request in during]
    assert [answer["token_ids"] for answer in responses] == [answers[other]] * 4
    assert {answer["stats"]["weight_version"] for answer in responses} == {5}


async def test_a_restarted_replica_gets_the_state_from_another_ingress(service, http):
    await post(http, "pause")
    await post(http, "sleep", level=2)
    service.restart(1)
    async with service.ingress() as second:
        assert (await states(second))["sleep_level"] == 2
        await eventually(lambda: service.replicas[1].status().pause == PauseState(2, True, 2))
        await post(second, "wake_up")
        assert not (await post(http, "continue"))["paused"]


async def test_a_replica_without_memory_sleeps_on_and_tries_again(steady, steady_http, answers, monkeypatch):
    await post(steady_http, "sleep")
    engine = steady.replicas[1].engine.core.engine  # type: ignore[attr-defined]

    def no_memory() -> None:
        raise OutOfMemory("the device has no memory for the KV cache")

    with monkeypatch.context() as patched:
        patched.setattr(engine, "wake_up", no_memory)
        error = problem(await steady_http.post("/admin/wake_up", headers=ADMIN), 503)
        assert error["code"] == "generation_change_failed"
        assert "1 of 2 replicas stay as they were: r1: the device has no memory" in error["message"]
        assert [row["sleep_level"] for row in (await states(steady_http))["replicas"]] == [0, 1]
        assert (await steady_http.get("/health")).json() == {"status": "ok", "replicas_ready": 1}
    await eventually(lambda: steady.replicas[1].status().pause.sleep_level == 0)
    assert (await ask(steady_http, REQUEST))["token_ids"] == answers[FIRST]


async def test_the_time_limit_of_a_request_holds_in_sleep(steady, steady_http):
    await post(steady_http, "sleep")
    error = problem(await steady_http.post(GENERATE, json={**REQUEST, "timeout_s": 0.1}), 504)
    assert error["code"] == "deadline_exceeded"
    assert num_waiting(steady) == 0
    await post(steady_http, "wake_up")


@pytest.mark.parametrize(("halt", "resume"), [("pause", "continue"), ("sleep", "wake_up")])
async def test_a_halted_service_can_drain_and_end(steady, steady_http, halt, resume):
    await post(steady_http, halt)
    during = [asyncio.ensure_future(steady_http.post(GENERATE, json=REQUEST)) for _ in range(4)]
    await eventually(lambda: num_waiting(steady) == 4)
    draining = steady.ingresses[-1].draining
    assert draining.begin() == 4
    draining.abort()
    assert {problem(await response, 503)["code"] for response in during} == {"not_ready"}
    await eventually(lambda: num_waiting(steady) == 0)
    async with steady.ingress() as http:
        await post(http, resume)


async def test_halted_replicas_neither_scale_nor_count_as_slow(steady, steady_http):
    ingress = steady.ingresses[-1]
    await ask(steady_http, REQUEST)
    await post(steady_http, "pause")
    during = send(steady_http, 40)
    slots, throughput = ingress.admission.slots, ingress.admission.throughput
    await eventually(lambda: slots.used >= slots.total > 0)
    assert ingress.replicas_wanted == 2
    full = throughput.moment().full
    await asyncio.sleep(0.05)
    assert throughput.moment().full == full
    await post(steady_http, "continue")
    await asyncio.gather(*during)
    assert throughput.moment().full > full


async def test_the_routes_need_the_admin_key_and_known_fields(steady_http):
    wrong_values = {"pause": {"mode": "abort"}, "continue": {}, "sleep": {"level": 3}, "wake_up": {}}
    paths = (await steady_http.get("/openapi.json")).json()["paths"]
    for name, fields in wrong_values.items():
        path = f"/admin/{name}"
        assert "is missing" in problem(await steady_http.post(path, json={}), 401)["message"]
        unknown = problem(await steady_http.post(path, json={"levle": 1}, headers=ADMIN), 422)
        assert "'levle' is not a field" in unknown["message"]
        for field in fields:
            assert problem(await steady_http.post(path, json=fields, headers=ADMIN), 422)["param"] == field
        content = paths[path]["post"]["requestBody"]["content"]["application/json"]
        jsonschema.validate(content["example"], content["schema"])
        assert paths[path]["post"]["responses"].keys() >= {"200", "401", "422", "503"}
    assert await states(steady_http) == state_of_all()
