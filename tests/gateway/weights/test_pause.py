"""/admin/pause, /continue, /sleep and /wake_up over several replicas: requests wait, and none is lost or wrong."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest

from service.decode.modes import Static
from service.engine import Engine, GenerationRequest
from service.errors import OutOfMemory
from service.gateway import admin
from service.gateway.pause import ServiceGenerationAnswer
from service.messages.replica_status import PauseState
from service.model import load_checkpoint
from tests.gateway.conftest import UNMEASURED
from tests.gateway.generate.helpers import GENERATE, PROMPT, ask, body, frames, problem
from tests.gateway.helpers import assert_shape, eventually, page
from tests.gateway.weights.replicas import ADMIN, WEIGHTS, Replicas
from tests.other_weights import FIRST, other_weights

TOKENS = 24
REQUEST = body(max_new_tokens=TOKENS, ignore_eos=True)


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return other_weights(tmp_path_factory.mktemp("weights") / "step-7")


@pytest.fixture(scope="module")
def answers(other: Path) -> dict[Path, list[int]]:
    asked = GenerationRequest("x", tuple(PROMPT), Static(), max_new_tokens=TOKENS)
    engines = {path: Engine(load_checkpoint(path), deps=UNMEASURED) for path in (FIRST, other)}
    return {path: list(engine.generate([asked])[0].token_ids) for path, engine in engines.items()}


@pytest.fixture
def replicas(monkeypatch: pytest.MonkeyPatch) -> Iterator[Replicas]:
    monkeypatch.setattr(admin, "AGAIN_S", 0.01)
    made = Replicas(FIRST, 2)
    yield made
    made.close()


@pytest.fixture
async def http(replicas: Replicas) -> AsyncIterator[httpx.AsyncClient]:
    async with replicas.ingress() as http:
        yield http


async def order(http: httpx.AsyncClient, name: str, **fields: Any) -> dict[str, Any]:
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


def asking(http: httpx.AsyncClient, count: int = 4) -> list[asyncio.Task[dict[str, Any]]]:
    return [asyncio.ensure_future(ask(http, REQUEST)) for _ in range(count)]


async def waiting(replicas: Replicas, count: int) -> None:
    """Returns when so many requests wait in engines that stand."""
    await eventually(
        lambda: sum(one._engine.state().num_waiting for one in replicas.generators) == count  # type: ignore[attr-defined]
    )


@pytest.mark.parametrize(
    ("stop", "fields", "go"),
    [
        ("pause", {}, "continue"),
        ("pause", {"mode": "wait"}, "continue"),
        ("sleep", {}, "wake_up"),
        ("sleep", {"level": 2}, "wake_up"),
    ],
)
async def test_requests_wait_and_are_answered_afterwards(
    replicas: Replicas,
    http: httpx.AsyncClient,
    answers: dict[Path, list[int]],
    stop: str,
    fields: dict[str, Any],
    go: str,
) -> None:
    """Some are under way, some come meanwhile. The service is healthy all the time."""
    before = asking(http)
    told = await order(http, stop, **fields)
    state = {"paused": stop == "pause", "sleep_level": fields.get("level", 1) if stop == "sleep" else 0}
    assert told == {**state, "replicas": [{"replica": name, **state} for name in ("r0", "r1")]}
    assert await states(http) == told
    during = asking(http)
    running = sum(not one.done() for one in before)
    await eventually(lambda: sum(one.snapshot().in_flight for one in replicas.generators) == running + 4)
    health = await http.get("/health")
    assert (health.status_code, health.json()) == (200, {"status": "ok", "replicas_ready": 2})
    metrics = await page(http)
    assert metrics("mrp_paused", replica="r0") == state["paused"]
    assert metrics("mrp_sleep_level", replica="r1") == state["sleep_level"]
    assert not any(one.done() for one in during)
    assert (await order(http, go))["replicas"][0] == {"replica": "r0", "paused": False, "sleep_level": 0}
    tokens = [(await one)["token_ids"] for one in (*before, *during)]
    assert tokens == [answers[FIRST]] * 8


async def test_a_stream_goes_on_after_a_pause(http: httpx.AsyncClient, answers: dict[Path, list[int]]) -> None:
    stream = asyncio.ensure_future(frames(http, REQUEST))
    for _ in range(3):
        await order(http, "pause")
        await order(http, "continue")
    *blocks, (last, _) = await stream
    assert last == "done"
    assert [token for _, block in blocks for token in block["token_ids"]] == answers[FIRST]


@pytest.mark.parametrize("level", [1, 2])
async def test_weights_that_come_in_sleep_answer_after_it(
    replicas: Replicas, http: httpx.AsyncClient, other: Path, answers: dict[Path, list[int]], level: int
) -> None:
    """Pause and sleep hold until each is undone. A less deep sleep changes nothing."""
    await order(http, "pause")
    await order(http, "sleep", level=level)
    assert (await order(http, "sleep", level=1))["sleep_level"] == level
    update = {"model": str(other), "version": 5}
    assert (await http.post(WEIGHTS, json=update, headers=ADMIN)).status_code == 200
    during = asking(http)
    await waiting(replicas, 4)
    assert await order(http, "wake_up") == {
        "paused": True,
        "sleep_level": 0,
        "replicas": [{"replica": name, "paused": True, "sleep_level": 0} for name in ("r0", "r1")],
    }
    await waiting(replicas, 4)
    await order(http, "continue")
    done = [await one for one in during]
    assert [one["token_ids"] for one in done] == [answers[other]] * 4
    assert {one["stats"]["weight_version"] for one in done} == {5}


async def test_a_replica_that_starts_again_gets_the_state(replicas: Replicas, http: httpx.AsyncClient) -> None:
    """By an ingress that the order did not come to."""
    await order(http, "pause")
    await order(http, "sleep", level=2)
    replicas.start_again(1)
    async with replicas.ingress() as second:
        assert (await states(second))["sleep_level"] == 2
        await eventually(lambda: replicas.generators[1].status().pause == PauseState(2, True, 2))
        await order(second, "wake_up")
        assert not (await order(http, "continue"))["paused"]


async def test_a_replica_without_memory_sleeps_on_and_tries_again(
    replicas: Replicas, http: httpx.AsyncClient, answers: dict[Path, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    await order(http, "sleep")
    engine = replicas.generators[1]._engine._core.engine  # type: ignore[attr-defined]

    def no_memory() -> None:
        raise OutOfMemory("the device has no memory for the KV cache")

    with monkeypatch.context() as patched:
        patched.setattr(engine, "wake_up", no_memory)
        detail = problem(await http.post("/admin/wake_up", headers=ADMIN), 503)
        assert detail["code"] == "generation_change_failed"
        assert "1 of 2 replicas stay as they were: r1: the device has no memory" in detail["message"]
        found = [one["sleep_level"] for one in (await states(http))["replicas"]]
        assert found == [0, 1]
    await eventually(lambda: replicas.generators[1].status().pause.sleep_level == 0)
    assert (await ask(http, REQUEST))["token_ids"] == answers[FIRST]


async def test_requests_that_wait_too_long_are_told(replicas: Replicas, http: httpx.AsyncClient) -> None:
    await order(http, "sleep")
    detail = problem(await http.post(GENERATE, json={**REQUEST, "timeout_s": 0.5}), 504)
    assert detail["code"] == "deadline_exceeded"
    assert sum(one._engine.state().num_waiting for one in replicas.generators) == 0  # type: ignore[attr-defined]


@pytest.mark.parametrize("stop", ["pause", "sleep"])
async def test_a_service_that_stands_can_drain_and_end(replicas: Replicas, http: httpx.AsyncClient, stop: str) -> None:
    await order(http, stop)
    during = [asyncio.ensure_future(http.post(GENERATE, json=REQUEST)) for _ in range(4)]
    await waiting(replicas, 4)
    draining = replicas.ingresses[0].draining
    assert draining.begin() == 4
    draining.abort()
    assert {problem(await one, 503)["code"] for one in during} == {"not_ready"}
    await waiting(replicas, 0)


async def test_replicas_that_stand_neither_scale_nor_look_slow(replicas: Replicas, http: httpx.AsyncClient) -> None:
    ingress = replicas.ingresses[0]
    await ask(http, REQUEST)
    await order(http, "pause")
    during = asking(http, 40)
    slots = ingress._admission._slots
    await eventually(lambda: slots.used >= slots.total > 0)
    assert ingress.replicas_wanted == 2
    full = ingress._admission._throughput.moment().full
    await asyncio.sleep(0.05)
    assert ingress._admission._throughput.moment().full == full
    await order(http, "continue")
    await asyncio.gather(*during)
    assert ingress._admission._throughput.moment().full > full


@pytest.mark.parametrize("name", ["pause", "continue", "sleep", "wake_up"])
async def test_the_routes_need_the_admin_key_and_known_fields(http: httpx.AsyncClient, name: str) -> None:
    path = f"/admin/{name}"
    assert "is missing" in problem(await http.post(path, json={}), 401)["message"]
    wrong = problem(await http.post(path, json={"levle": 1}, headers=ADMIN), 422)
    assert "'levle' is not a field" in wrong["message"]
    values = {"pause": {"mode": "abort"}, "sleep": {"level": 3}}
    if fields := values.get(name):
        assert problem(await http.post(path, json=fields, headers=ADMIN), 422)["param"] == next(iter(fields))
    posted = (await http.get("/openapi.json")).json()["paths"][path]["post"]
    content = posted["requestBody"]["content"]["application/json"]
    jsonschema.validate(content["example"], content["schema"])
    assert posted["responses"].keys() >= {"200", "401", "422", "503"}
    assert await states(http) == {
        "paused": False,
        "sleep_level": 0,
        "replicas": [{"replica": replica, "paused": False, "sleep_level": 0} for replica in ("r0", "r1")],
    }
