"""POST /admin/weights over several replicas: one version answers, whatever restarts, is lost or comes between."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest
from safetensors.torch import load_file, save_file

from service.api.models import Models
from service.engine.thread import EngineThread
from service.errors import NotReady, OutOfMemory
from service.messages.replica_status import CheckWeights, UpdateWeights
from service.messages.wire import Weights
from tests.gateway.engines import EngineGate
from tests.gateway.generate.helpers import GENERATE, ask, frames, problem
from tests.gateway.helpers import assert_shape, eventually, page
from tests.gateway.weights.conftest import MakeReplicas
from tests.gateway.weights.replicas import ADMIN, REQUEST, TOKENS, WEIGHTS, listed, refused, update
from tests.other_weights import FIRST, other_weights
from tests.tiny import GOLDEN, GOLDEN_NAMES

Answers = dict[Path, list[int]]


async def ask_all(http: httpx.AsyncClient, count: int = 2) -> list[list[int]]:
    """The answers to concurrent requests, which the replicas take in turns."""
    return [answer["token_ids"] for answer in await asyncio.gather(*(ask(http, REQUEST) for _ in range(count)))]


# --- updates ---------------------------------------------------------------------------------------


async def test_all_replicas_answer_with_the_new_weights_and_report_them(service, http, other, answers):
    assert await ask_all(http) == [answers[FIRST]] * 2
    answer = await update(http, other)
    assert (answer["model"], answer["version"]) == (str(other), 1)
    rows = [(row["replica"], row["model"], row["version"]) for row in answer["replicas"]]
    assert rows == [("r0", str(other), 1), ("r1", str(other), 1)]
    assert all(row["seconds"] > 0 for row in answer["replicas"])
    assert await ask_all(http) == [answers[other]] * 2 != [answers[FIRST]] * 2
    assert [row["behind"] for row in (await listed(http))["replicas"]] == [False, False]
    models = (await http.get("/v1/models")).json()
    assert_shape(Models, models)
    assert models["data"][0]["weights"] == {"model": "step-7", "version": 1}
    assert (await page(http))("mrp_weights_version", replica="r1") == 1
    assert {request.weights.version for request in service.requests[-2:] if request.weights} == {1}


async def test_versions_grow(make, other, third, answers):
    http = make(1).ingress()
    assert (await update(http, other, version=7))["version"] == 7
    for version in (6, 7):
        error = await refused(http, 409, model=str(third), version=version)
        assert (error["code"], error["param"]) == ("weights_conflict", "version")
        assert f"version is {version}, allowed is more than 7" in error["message"]
    assert (await update(http, other, version=7))["version"] == 7  # sent again
    assert (await update(http, third))["version"] == 8
    assert await ask_all(http) == [answers[third]] * 2


async def test_the_calibration_of_the_new_weights_is_read(make, tmp_path):
    """A calibration of another checkpoint is not used, and the reason is reported."""
    http = make(1).ingress()
    folder = other_weights(tmp_path / "calibrated")
    quality = Path("service/demo/quality.json").resolve()
    (folder / "quality.json").write_text(quality.read_text("utf-8"), "utf-8")
    before = (await http.get("/v1/models")).json()["data"][0]["quality"]["missing"]
    await update(http, folder)
    after = (await http.get("/v1/models")).json()["data"][0]["quality"]["missing"]
    assert "has no quality.json" in before
    assert "was made for another checkpoint" in after


# --- the routes ------------------------------------------------------------------------------------


async def test_the_routes_have_keys_of_their_own(make, other):
    async with make(0, admin_keys=()).ingress() as http:
        assert problem(await http.post(WEIGHTS, json={"model": "x"}, headers=ADMIN), 404)["code"] == "not_found"
    async with make(1, api_keys=("user",)).ingress() as http:
        user = {"Authorization": "Bearer user"}
        for method in ("GET", "POST"):
            assert "is missing" in problem(await http.request(method, WEIGHTS, json={"model": "x"}), 401)["message"]
            wrong = await http.request(method, WEIGHTS, json={"model": "x"}, headers=user)
            assert "admin_keys` is wrong" in problem(wrong, 401)["message"]
        assert problem(await http.post(GENERATE, json=REQUEST, headers=ADMIN), 401)
        await update(http, other)
        posted = (await http.get("/openapi.json")).json()["paths"][WEIGHTS]["post"]
        assert posted["responses"].keys() >= {"200", "401", "409", "413", "422", "503"}
        content = posted["requestBody"]["content"]["application/json"]
        jsonschema.validate(content["example"], content["schema"])


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({}, "model", "model is missing"),
        ({"model": ""}, "model", "at least 1 character"),
        ({"model": "x", "version": 0}, "version", "greater than or equal to 1"),
        ({"model": "x", "verison": 7}, "verison", "did you mean 'version'?"),
        ({"model": "/no/such/folder"}, "model", "neither a folder nor a hub name such as 'owner/model'; the old"),
        ({"model": str(GOLDEN / GOLDEN_NAMES[1])}, "model", "that of the served weights is"),
    ],
)
async def test_a_wrong_body_or_checkpoint_is_refused_and_nothing_changes(steady_http, fields, param, message):
    error = await refused(steady_http, 422, **fields)
    assert error["param"] == param
    assert message in error["message"]
    assert (await listed(steady_http))["version"] == 0


async def test_the_routes_have_one_spelling(steady_http):
    """A proxy that keeps clients from /admin/ may compare the path as it is sent."""
    for path in ("/admin%2fweights", "/%61dmin/weights", "/admin/we%69ghts"):
        for headers in (ADMIN, {}):
            assert (await steady_http.get(path, headers=headers)).status_code == 404
            assert (await steady_http.post(path, headers=headers, json={})).status_code == 404


async def test_a_number_that_is_not_finite_changes_nothing(steady_http, tmp_path, answers):
    """A diverged training must not replace good weights."""
    diverged = other_weights(tmp_path / "diverged")
    weights = load_file(diverged / "model.safetensors")
    weights["lm_head.weight"].view(-1)[0] = float("nan")
    save_file(weights, diverged / "model.safetensors")
    error = await refused(steady_http, 422, model=str(diverged))
    assert (error["code"], error["param"]) == ("weights_refused", "model")
    reason = "'lm_head.weight' has numbers that are not finite as torch.float32; the old weights stay"
    assert reason in error["message"]
    assert (await listed(steady_http))["version"] == 0
    assert (await ask(steady_http, REQUEST))["token_ids"] == answers[FIRST]


# --- replicas that fail ----------------------------------------------------------------------------


async def test_no_replica_changes_if_the_check_fails_at_one(steady, steady_http, other, answers):
    steady.errors[1, CheckWeights] = NotReady("the folder is not here")
    try:
        assert "is not here" in (await refused(steady_http, 503, model=str(other)))["message"]
    finally:
        steady.errors.clear()
    assert await ask_all(steady_http) == [answers[FIRST]] * 2


async def test_if_no_replica_takes_the_weights_the_old_ones_stay(steady, steady_http, other, answers):
    no_memory = OutOfMemory("no memory for the new weights")
    steady.errors |= {(number, UpdateWeights): no_memory for number in range(2)}
    try:
        assert (await refused(steady_http, 503, model=str(other)))["code"] == "out_of_memory"
    finally:
        steady.errors.clear()
    assert await ask_all(steady_http) == [answers[FIRST]] * 2


async def test_a_replica_that_fails_is_named_and_answers_nothing(service, http, other, answers):
    service.errors[1, UpdateWeights] = OutOfMemory("no memory for the new weights")
    error = await refused(http, 503, model=str(other))
    assert error["code"] == "weight_update_failed"
    assert "1 of 2 replicas could not take the weights" in error["message"]
    assert "r1: no memory for the new weights" in error["message"]
    assert await ask_all(http) == [answers[other]] * 2
    assert [(row["version"], row["behind"]) for row in (await listed(http))["replicas"]] == [(1, False), (0, True)]
    service.errors.clear()
    await asyncio.sleep(0.02)
    await listed(http)
    await eventually(lambda: service.replicas[1].status().card.weights.version == 1)


# --- replicas that restart, other ingresses ----------------------------------------------------------


async def test_a_restarted_replica_answers_nothing_before_it_has_the_newest_weights(service, http, other, answers):
    await update(http, other)
    service.restart(1)
    assert await ask_all(http, 4) == [answers[other]] * 4
    refusals = (await page(http))("mrp_request_failovers_total", reason="weights_behind")
    assert refusals > 0
    await eventually(lambda: service.replicas[1].status().card.weights.version == 1)


@pytest.mark.parametrize("mend", ["folder", "update"])
async def test_a_service_is_ready_when_it_has_the_newest_weights(make, tmp_path, third, answers, mend):
    """Their folder is gone when the replica restarts. It comes back, or a trainer sends the next checkpoint."""
    service = make(1)
    folder = other_weights(tmp_path / "step-9", seed=9)
    async with service.ingress() as http:
        await update(http, folder)
        before = await ask_all(http, 1)
        folder.rename(tmp_path / "away")
        service.restart(0)
        error = problem(await http.get("/health"), 503)
        assert (error["code"], "it has weights of version 0, allowed are 1" in error["message"]) == ("not_ready", True)
        assert (await page(http))("mrp_replicas_ready") == 0
        late = problem(await http.post(GENERATE, json={**REQUEST, "timeout_s": 0.1}), 503)
        assert late["code"] == "weights_behind"
        waiting = asyncio.ensure_future(ask_all(http, 40))
        await eventually(lambda: service.ingresses[0].pipeline.in_flight == 40)
        assert service.ingresses[0].replicas_wanted == 1  # a further replica would be behind, too
        if mend == "folder":
            (tmp_path / "away").rename(folder)
        else:
            assert (await update(http, third))["version"] == 2
        assert await waiting == (before if mend == "folder" else [answers[third]]) * 40
        health = await http.get("/health")
        assert (health.status_code, health.json()) == (200, {"status": "ok", "replicas_ready": 1})


async def test_other_and_later_ingresses_know_the_newest_weights(service, http, other, answers):
    async with service.ingress() as second:
        assert await ask_all(second) == [answers[FIRST]] * 2
        await update(http, other)
        service.restart(0)
        service.restart(1)
        assert await ask_all(second) == [answers[other]] * 2
        service.restart(0)
        rows = (await listed(http))["replicas"]
        assert [(row["version"], row["behind"]) for row in rows] == [(0, True), (1, False)]
        async with service.ingress() as later:
            assert await ask_all(later) == [answers[other]] * 2
    await eventually(lambda: service.replicas[0].status().card.weights.version == 1)


async def test_two_updates_at_once_leave_one_version_everywhere(service, http, other, third, answers):
    """They come to two ingresses, which do not know of each other."""
    async with service.ingress() as second:
        updates = [
            asyncio.ensure_future(ingress.post(WEIGHTS, json={"model": str(path), "version": 1}, headers=ADMIN))
            for ingress, path in ((http, other), (second, third))
        ]
        statuses = sorted([(await response).status_code for response in updates])
        assert statuses in ([200, 409], [200, 200])
        [model] = {replica.status().card.weights.model for replica in service.replicas}
        assert await ask_all(http) == [answers[Path(model)]] * 2


# --- requests under way ----------------------------------------------------------------------------


async def test_a_lost_stream_is_continued_by_the_same_weights_only(service, http, other, third, answers):
    await update(http, other)
    service.lost_after = 1
    *blocks, (last, _) = await frames(http, REQUEST)
    assert last == "done"
    assert [token for _, block in blocks for token in block["token_ids"]] == answers[other]
    assert service.requests[-1].resume.version == 1

    newer = UpdateWeights(Weights(2, str(third), service.settings.model))
    service.lost_after, service.at_loss = 1, lambda: service.next_replica.control(newer)
    *blocks, (last, data) = await frames(http, REQUEST)
    assert [name for name, _ in blocks] == ["block"]
    assert (last, data["error"]["code"]) == ("error", "weights_changed")
    assert "weights of version 1 began this answer" in data["error"]["message"]


class GatedService:
    """One replica whose engine waits before each forward, and a client."""

    def __init__(self, make: MakeReplicas, **settings: Any) -> None:
        self.gate = EngineGate()
        service = make(1, deps=self.gate.deps, **settings)
        self.replica, self.http = service.replicas[0], service.ingress()

    def send(self, path: str, body: dict[str, Any]) -> asyncio.Task[httpx.Response]:
        return asyncio.ensure_future(self.http.post(path, json=body, headers=ADMIN))

    @property
    def thread(self) -> EngineThread:
        return self.replica.engine.thread  # type: ignore[attr-defined,no-any-return]


@pytest.fixture
async def gated(make: MakeReplicas, request: pytest.FixtureRequest) -> AsyncIterator[GatedService]:
    service = GatedService(make, **getattr(request, "param", {}))
    yield service
    service.gate.release()


async def test_requests_before_an_update_finish_and_later_ones_get_the_new_weights(gated, other, answers):
    before = [gated.send(GENERATE, REQUEST) for _ in range(3)]
    await gated.gate.holds()
    await eventually(lambda: gated.replica.snapshot().in_flight == 3)
    change = gated.send(WEIGHTS, {"model": str(other)})
    gated.gate.let(1)  # a step of the engine, which empties its inbox
    await eventually(lambda: gated.thread.has_task)
    after = [gated.send(GENERATE, REQUEST) for _ in range(3)]
    await eventually(lambda: gated.replica.snapshot().in_flight == 6)
    assert not change.done()
    gated.gate.release()
    assert [(await response).json()["token_ids"] for response in before] == [answers[FIRST]] * 3
    assert [(await response).json()["token_ids"] for response in after] == [answers[other]] * 3
    assert (await change).status_code == 200


async def test_an_aborting_update_restarts_whole_answers_and_ends_streams(gated, other, answers):
    whole, stream = gated.send(GENERATE, REQUEST), gated.send(GENERATE, {**REQUEST, "stream": True})
    await eventually(lambda: len(gated.thread._undelivered) == 2)
    forwards = TOKENS // 2  # some blocks are finished, and no answer is complete
    gated.gate.let(forwards)
    await gated.gate.holds(forwards + 1)
    change = gated.send(WEIGHTS, {"model": str(other), "mode": "abort"})
    await eventually(lambda: gated.thread.has_task)
    gated.gate.release()
    assert (await whole).json()["token_ids"] == answers[other]
    events = (await stream).text.strip().split("\n\n")
    name, data = events[-1].split("\n")
    assert name == "event: error"
    assert json.loads(data.removeprefix("data: "))["error"]["code"] == "weights_changed"
    assert len(events) > 1
    assert (await change).status_code == 200
