"""POST /admin/weights over several replicas: one version answers, whatever starts again, is lost or comes between."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest
from safetensors.torch import load_file, save_file
from starlette.types import ASGIApp

from service.api.models import Models
from service.decode.modes import Static
from service.engine import Engine, GenerationRequest
from service.errors import NotReady, OutOfMemory
from service.gateway import admin
from service.gateway.ingress import Ingress
from service.gateway.weights import KnownWeights, UpdateWeightsAnswer
from service.messages.wire import Weights
from service.model import load_checkpoint
from service.replica.replica import Replica
from service.routing import failover
from service.settings.settings import Settings
from tests.gateway.conftest import UNMEASURED
from tests.gateway.engines import EngineGate
from tests.gateway.generate.helpers import GENERATE, PROMPT, ask, body, frames, problem
from tests.gateway.helpers import assert_shape, client, eventually, page
from tests.gateway.weights.replicas import ADMIN, WEIGHTS, Replicas
from tests.other_weights import FIRST, other_weights
from tests.replicas import local_generator
from tests.tiny import GOLDEN, GOLDEN_NAMES

Make = Callable[..., Replicas]
TOKENS = 24
REQUEST = body(max_new_tokens=TOKENS, ignore_eos=True)


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return other_weights(tmp_path_factory.mktemp("weights") / "step-7")


@pytest.fixture(scope="module")
def third(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return other_weights(tmp_path_factory.mktemp("weights") / "step-8", seed=8)


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failover, "_PAUSE_S", 0.001)
    monkeypatch.setattr(failover, "_LONGEST_PAUSE_S", 0.01)


@pytest.fixture
def make() -> Iterator[Make]:
    """make(count, **settings) -> replicas, closed after the test."""
    made: list[Replicas] = []

    def make(count: int = 2, **settings: Any) -> Replicas:
        made.append(Replicas(FIRST, count, **settings))
        return made[-1]

    yield make
    for replicas in made:
        replicas.close()


@pytest.fixture
def replicas(make: Make) -> Replicas:
    return make()


@pytest.fixture
async def http(replicas: Replicas) -> AsyncIterator[httpx.AsyncClient]:
    async with replicas.ingress() as http:
        yield http


@pytest.fixture(scope="module")
def steady() -> Iterator[ASGIApp]:
    """One replica whose weights no test changes."""
    replicas = Replicas(FIRST, 1)
    yield Ingress("i0", replicas.settings, replicas).app(answers_request_id=True)
    replicas.close()


@pytest.fixture(scope="module")
def answers(other: Path, third: Path) -> dict[Path, list[int]]:
    """What fresh services of the checkpoints answer to `REQUEST`."""
    asked = GenerationRequest("x", tuple(PROMPT), Static(), max_new_tokens=TOKENS)
    engines = {path: Engine(load_checkpoint(path), deps=UNMEASURED) for path in (FIRST, other, third)}
    return {path: list(engine.generate([asked])[0].token_ids) for path, engine in engines.items()}


async def give(http: httpx.AsyncClient, model: Path, **fields: Any) -> dict[str, Any]:
    response = await http.post(WEIGHTS, json={"model": str(model), **fields}, headers=ADMIN)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    assert_shape(UpdateWeightsAnswer, answer)
    return answer


async def refused(http: httpx.AsyncClient, status: int, **fields: Any) -> dict[str, Any]:
    return problem(await http.post(WEIGHTS, json=fields, headers=ADMIN), status)


async def known(http: httpx.AsyncClient) -> dict[str, Any]:
    response = await http.get(WEIGHTS, headers=ADMIN)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    assert_shape(KnownWeights, answer)
    return answer


async def answered(http: httpx.AsyncClient, count: int = 4) -> list[list[int]]:
    """The answers to so many requests at once: every replica gets some."""
    return [one["token_ids"] for one in await asyncio.gather(*(ask(http, REQUEST) for _ in range(count)))]


async def test_all_replicas_answer_with_the_new_weights_and_say_so(
    replicas: Replicas, http: httpx.AsyncClient, other: Path, answers: dict[Path, list[int]]
) -> None:
    assert await answered(http) == [answers[FIRST]] * 4
    told = await give(http, other)
    assert (told["model"], told["version"]) == (str(other), 1)
    rows = [(one["replica"], one["model"], one["version"]) for one in told["replicas"]]
    assert rows == [("r0", str(other), 1), ("r1", str(other), 1)]
    assert all(one["seconds"] > 0 for one in told["replicas"])
    assert await answered(http) == [answers[other]] * 4 != [answers[FIRST]] * 4
    assert [one["behind"] for one in (await known(http))["replicas"]] == [False, False]
    models = (await http.get("/v1/models")).json()
    assert_shape(Models, models)
    assert models["data"][0]["weights"] == {"model": "step-7", "version": 1}
    assert (await page(http))("mrp_weights_version", replica="r1") == 1
    assert {request.weights.version for _, request in replicas.requests[-4:] if request.weights} == {1}


async def test_the_routes_have_keys_of_their_own(make: Make, other: Path) -> None:
    async with make(1, admin_keys=()).ingress() as http:
        assert problem(await http.post(WEIGHTS, json={"model": "x"}, headers=ADMIN), 404)["code"] == "not_found"
    async with make(1, api_keys=("user",)).ingress() as http:
        user = {"Authorization": "Bearer user"}
        for method in ("GET", "POST"):
            assert "is missing" in problem(await http.request(method, WEIGHTS, json={"model": "x"}), 401)["message"]
            wrong = await http.request(method, WEIGHTS, json={"model": "x"}, headers=user)
            assert "admin_keys` is wrong" in problem(wrong, 401)["message"]
        assert problem(await http.post(GENERATE, json=REQUEST, headers=ADMIN), 401)
        await give(http, other)
        posted = (await http.get("/openapi.json")).json()["paths"][WEIGHTS]["post"]
        assert posted["responses"].keys() >= {"200", "401", "409", "413", "422", "503"}
        content = posted["requestBody"]["content"]["application/json"]
        jsonschema.validate(content["example"], content["schema"])


@pytest.mark.parametrize(
    ("sent", "param", "said"),
    [
        ({}, "model", "model is missing"),
        ({"model": ""}, "model", "at least 1 character"),
        ({"model": 5}, "model", "valid string"),
        ({"model": "x", "version": 0}, "version", "greater than or equal to 1"),
        ({"model": "x", "version": "7"}, "version", "valid integer"),
        ({"model": "x", "verison": 7}, "verison", "did you mean 'version'?"),
        ({"model": "/no/such/folder"}, "model", "neither a folder nor a hub name such as 'owner/model'; the old"),
        ({"model": str(GOLDEN / GOLDEN_NAMES[1])}, "model", "that of the served weights is"),
    ],
)
async def test_what_cannot_be_taken_is_refused_and_nothing_changes(
    steady: ASGIApp, sent: dict[str, Any], param: str, said: str
) -> None:
    async with client(steady) as http:
        detail = await refused(http, 422, **sent)
        assert detail["param"] == param
        assert said in detail["message"]
        assert (await known(http))["version"] == 0


@pytest.mark.parametrize("path", ["/admin%2fweights", "/%61dmin/weights", "/admin/we%69ghts"])
async def test_the_routes_have_one_spelling(steady: ASGIApp, path: str) -> None:
    """A proxy that keeps clients from /admin/ may compare the path as it is sent."""
    async with client(steady) as http:
        for headers in (ADMIN, {}):
            assert (await http.get(path, headers=headers)).status_code == 404
            assert (await http.post(path, headers=headers, json={})).status_code == 404
        assert (await http.get(WEIGHTS, headers=ADMIN)).status_code == 200


async def test_a_number_that_is_not_finite_changes_nothing(
    steady: ASGIApp, tmp_path: Path, answers: dict[Path, list[int]]
) -> None:
    """A diverged training must not replace good weights."""
    diverged = other_weights(tmp_path / "diverged")
    weights = load_file(diverged / "model.safetensors")
    weights["lm_head.weight"].view(-1)[0] = float("nan")
    save_file(weights, diverged / "model.safetensors")
    async with client(steady) as http:
        detail = await refused(http, 422, model=str(diverged))
        assert (detail["code"], detail["param"]) == ("weights_refused", "model")
        assert (
            "'lm_head.weight' has numbers that are not finite as torch.float32; the old weights stay"
            in detail["message"]
        )
        assert (await known(http))["version"] == 0
        assert (await ask(http, REQUEST))["token_ids"] == answers[FIRST]


async def test_no_replica_changes_if_one_cannot(
    replicas: Replicas, http: httpx.AsyncClient, other: Path, answers: dict[Path, list[int]]
) -> None:
    """The folder is missing where one of them runs."""

    async def missing(folders: tuple[str, ...], *, is_partial: bool) -> None:
        raise NotReady(f"{folders[-1]} is not here")

    replicas.generators[1]._weights._engine.check_weights = missing  # type: ignore[method-assign]
    assert "is not here" in (await refused(http, 503, model=str(other)))["message"]
    assert await answered(http) == [answers[FIRST]] * 4


async def test_versions_grow(make: Make, other: Path, third: Path, answers: dict[Path, list[int]]) -> None:
    http = make(1).ingress()
    assert (await give(http, other, version=7))["version"] == 7
    for version in (6, 7):
        detail = await refused(http, 409, model=str(third), version=version)
        assert (detail["code"], detail["param"]) == ("weights_conflict", "version")
        assert f"version is {version}, allowed is more than 7" in detail["message"]
    assert (await give(http, other, version=7))["version"] == 7  # sent again
    assert (await give(http, third))["version"] == 8
    assert await answered(http) == [answers[third]] * 4


async def test_a_replica_that_started_again_answers_nothing_before_it_has_the_newest(
    replicas: Replicas, http: httpx.AsyncClient, other: Path, answers: dict[Path, list[int]]
) -> None:
    await give(http, other)
    replicas.start_again(1)
    assert await answered(http, 8) == [answers[other]] * 8
    refusals = (await page(http))("mrp_request_failovers_total", reason="weights_behind")
    assert refusals > 0
    await eventually(lambda: replicas.generators[1].status().card.weights.version == 1)


async def test_other_ingresses_and_new_ones_know_the_newest(
    replicas: Replicas, http: httpx.AsyncClient, other: Path, answers: dict[Path, list[int]]
) -> None:
    async with replicas.ingress() as second:
        assert await answered(second) == [answers[FIRST]] * 4
        await give(http, other)
        replicas.start_again(0)
        replicas.start_again(1)
        assert await answered(second) == [answers[other]] * 4
        replicas.start_again(0)
        async with replicas.ingress() as later:
            assert await answered(later) == [answers[other]] * 4


async def test_all_replicas_that_started_again_are_given_the_newest_by_a_question(
    replicas: Replicas, http: httpx.AsyncClient, other: Path
) -> None:
    await give(http, other)
    replicas.start_again(0)
    rows = (await known(http))["replicas"]
    assert [(one["version"], one["behind"]) for one in rows] == [(0, True), (1, False)]
    await eventually(lambda: replicas.generators[0].status().card.weights.version == 1)


async def test_a_replica_that_fails_is_named_and_answers_nothing(
    monkeypatch: pytest.MonkeyPatch,
    replicas: Replicas,
    http: httpx.AsyncClient,
    other: Path,
    answers: dict[Path, list[int]],
) -> None:
    monkeypatch.setattr(admin, "AGAIN_S", 0.01)
    replicas.refuses = {1: OutOfMemory("no memory for the new weights")}
    detail = await refused(http, 503, model=str(other))
    assert detail["code"] == "exchange_failed"
    assert "1 of 2 replicas could not take the weights" in detail["message"]
    assert "r1: no memory for the new weights" in detail["message"]
    assert await answered(http) == [answers[other]] * 4
    assert [(one["version"], one["behind"]) for one in (await known(http))["replicas"]] == [(1, False), (0, True)]
    replicas.refuses = {}
    await ask(http, REQUEST)
    await asyncio.sleep(0.02)
    await known(http)
    await eventually(lambda: replicas.generators[1].status().card.weights.version == 1)


async def test_if_no_replica_can_the_old_weights_stay(
    replicas: Replicas, http: httpx.AsyncClient, other: Path, answers: dict[Path, list[int]]
) -> None:
    replicas.refuses = dict.fromkeys(range(2), OutOfMemory("no memory for the new weights"))
    assert (await refused(http, 503, model=str(other)))["code"] == "out_of_memory"
    assert await answered(http) == [answers[FIRST]] * 4


async def test_two_updates_at_once_leave_one_version_everywhere(
    replicas: Replicas, http: httpx.AsyncClient, other: Path, third: Path, answers: dict[Path, list[int]]
) -> None:
    """By two ingresses, which do not know of each other."""
    async with replicas.ingress() as second:
        sent = [
            asyncio.ensure_future(one.post(WEIGHTS, json={"model": str(path), "version": 1}, headers=ADMIN))
            for one, path in ((http, other), (second, third))
        ]
        statuses = sorted([(await response).status_code for response in sent])
        assert statuses in ([200, 409], [200, 200])
        [model] = {generator.status().card.weights.model for generator in replicas.generators}
        assert await answered(http) == [answers[Path(model)]] * 4


async def test_a_cut_stream_is_not_continued_by_other_weights(
    replicas: Replicas, http: httpx.AsyncClient, other: Path
) -> None:
    """The other replica has newer ones by then."""
    new = Weights(1, str(other), replicas.settings.model)
    replicas.lost_after, replicas.at_loss = 1, lambda: replicas.generators[1].update_weights(new)
    *blocks, (last, said) = await frames(http, REQUEST)
    assert [name for name, _ in blocks] == ["block"]
    assert (last, said["error"]["code"]) == ("error", "weights_changed")
    assert "weights of version 0 began this answer" in said["error"]["message"]


async def test_a_cut_stream_goes_on_with_the_same_weights(
    replicas: Replicas, http: httpx.AsyncClient, other: Path, answers: dict[Path, list[int]]
) -> None:
    await give(http, other)
    replicas.lost_after = 2
    *blocks, (last, _) = await frames(http, REQUEST)
    assert last == "done"
    assert [token for _, block in blocks for token in block["token_ids"]] == answers[other]
    assert replicas.requests[-1][1].resume.version == 1


class Holding:
    """One replica whose engine waits before its forwards, and a client."""

    def __init__(self, **settings: Any) -> None:
        self.held = EngineGate()
        self.replicas = Replicas(FIRST, 0, **settings)
        self.replicas.generators.append(_held(self.replicas.settings, self.held))
        self.http = self.replicas.ingress()

    def send(self, path: str, sent: dict[str, Any]) -> asyncio.Task[httpx.Response]:
        return asyncio.ensure_future(self.http.post(path, json=sent, headers=ADMIN))

    @property
    def holds_for_weights(self) -> bool:
        return self.replicas.generators[0]._engine._engine._task is not None


def _held(settings: Settings, held: EngineGate) -> Replica:
    return local_generator("r0", load_checkpoint(settings.model), settings, deps=held.deps)


@pytest.fixture
def holding() -> Iterator[Callable[..., Holding]]:
    made: list[Holding] = []

    def make(**settings: Any) -> Holding:
        made.append(Holding(**settings))
        return made[-1]

    yield make
    for one in made:
        one.held.release()
        one.replicas.close()


async def test_under_load_nothing_is_lost_and_nothing_is_mixed(
    holding: Callable[..., Holding], other: Path, answers: dict[Path, list[int]]
) -> None:
    one = holding()
    before = [one.send(GENERATE, REQUEST) for _ in range(3)]
    await one.held.holds()
    await eventually(lambda: one.replicas.generators[0].snapshot().in_flight == 3)
    change = one.send(WEIGHTS, {"model": str(other)})
    one.held.let(1)  # a step of the engine, which takes in all that came
    await eventually(
        lambda: one.replicas.generators[0]._engine._engine._inbox.task is not None or one.holds_for_weights
    )
    after = [one.send(GENERATE, REQUEST) for _ in range(3)]
    await eventually(lambda: one.replicas.generators[0].snapshot().in_flight == 6)
    assert not change.done()
    one.held.release()
    assert [(await response).json()["token_ids"] for response in before] == [answers[FIRST]] * 3
    assert [(await response).json()["token_ids"] for response in after] == [answers[other]] * 3
    assert (await change).status_code == 200


async def test_by_abort_whole_answers_begin_again_and_begun_streams_end(
    holding: Callable[..., Holding], other: Path, answers: dict[Path, list[int]]
) -> None:
    one = holding(weights_update="abort")
    whole, stream = one.send(GENERATE, REQUEST), one.send(GENERATE, {**REQUEST, "stream": True})
    await eventually(
        lambda: len(one.replicas.generators[0]._engine._engine._undelivered) == 2
    )  # both are at the engine
    blocks = TOKENS // 2
    one.held.let(blocks)  # forwards: some blocks are there, and no answer is whole
    await one.held.holds(blocks + 1)
    change = one.send(WEIGHTS, {"model": str(other)})
    await eventually(lambda: one.replicas.generators[0]._engine._engine._inbox.task is not None)
    one.held.release()
    assert (await whole).json()["token_ids"] == answers[other]
    events = (await stream).text.strip().split("\n\n")
    name, data = events[-1].split("\n")
    assert name == "event: error"
    assert json.loads(data.removeprefix("data: "))["error"]["code"] == "weights_changed"
    assert len(events) > 1
    assert (await change).status_code == 200


async def test_the_calibration_of_the_new_weights_is_read(http: httpx.AsyncClient, other: Path, tmp_path: Path) -> None:
    """One that was made for others is not used, and it is said why."""
    folder = other_weights(tmp_path / "calibrated")
    quality = Path("service/demo/quality.json").resolve()
    (folder / "quality.json").write_text(quality.read_text("utf-8"), "utf-8")
    before = (await http.get("/v1/models")).json()["data"][0]["quality"]["missing"]
    await give(http, folder)
    after = (await http.get("/v1/models")).json()["data"][0]["quality"]["missing"]
    assert "has no quality.json" in before
    assert "was made for another checkpoint" in after
