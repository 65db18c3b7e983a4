"""Checks before a body is parsed: its size, the key, the route, the id of the request."""

import json
import tomllib
from collections.abc import AsyncIterator

import httpx
import pytest

from service.api.answers import Version
from service.replica.replica import Replica
from tests.gateway.generate.helpers import GENERATE, body, problem
from tests.gateway.helpers import assert_shape, over
from tests.sources import ROOT


@pytest.fixture(scope="module")
def locked(generator: Replica) -> httpx.AsyncClient:
    return over(generator, api_keys=("first", "second"))


@pytest.fixture(scope="module")
def small(generator: Replica) -> httpx.AsyncClient:
    return over(generator, max_body_bytes=200)


class TestBodySizes:
    async def test_a_declared_size_is_refused(self, small):
        detail = problem(await small.post(GENERATE, content=b"x" * 201), 413)
        assert (detail["code"], detail["message"]) == ("body_too_large", "the body has 201 bytes, allowed are 200")

    async def test_a_wrong_size_or_none_is_refused_while_it_comes(self, small):
        async def chunks() -> AsyncIterator[bytes]:
            for _ in range(300):
                yield b"x"

        for headers in ({}, {"Content-Length": "3"}, {"Content-Length": "many"}):
            detail = problem(await small.post(GENERATE, content=chunks(), headers=headers), 413)
            assert detail["message"] == "the body has more than 200 bytes, allowed are 200"

    async def test_a_body_at_the_limit_is_read(self, small):
        content = json.dumps(body()).encode().ljust(200)
        assert (await small.post(GENERATE, content=content)).status_code == 200
        assert problem(await small.post(GENERATE, content=content + b" "), 413)


class TestKeys:
    ROUTES = (("POST", GENERATE), ("GET", "/v1/models"))

    @pytest.mark.parametrize(("method", "path"), ROUTES)
    @pytest.mark.parametrize(
        ("headers", "message"),
        [
            ({}, "the API key is missing"),
            ({"Authorization": "Bearer wrong"}, "the API key is wrong"),
            ({"Authorization": "Bearer first second"}, "the API key is wrong"),
            ({"Authorization": "Bearer "}, "the API key is missing"),
            ({"Authorization": "Basic first"}, "the API key is missing"),
            ({"Authorization": "first"}, "the API key is missing"),
            ({"x-api-key": "first", "Authorization": "Bearer wrong"}, "the API key is wrong"),
        ],
    )
    async def test_a_missing_or_wrong_key_is_refused(self, locked, method, path, headers, message):
        response = await locked.request(method, path, headers=headers)
        detail = problem(response, 401)
        assert detail["code"] == "unauthorized"
        assert detail["message"] == f"{message}; send `Authorization: Bearer <key>`"
        assert response.headers["www-authenticate"] == "Bearer"

    @pytest.mark.parametrize(
        "headers",
        [
            {"Authorization": "Bearer first"},
            {"Authorization": "bearer second"},
            {"Authorization": "BEARER  second "},
            {"x-api-key": "first"},
            {"X-Api-Key": "second", "Authorization": "Basic x"},
        ],
    )
    async def test_a_right_key_is_accepted(self, locked, headers):
        assert (await locked.get("/v1/models", headers=headers)).status_code == 200
        assert (await locked.post(GENERATE, json=body(max_new_tokens=1), headers=headers)).status_code == 200

    async def test_every_route_needs_a_key_but_those_for_operators(self, locked):
        paths = (await locked.get("/openapi.json")).json()["paths"]
        routes = [(method, path.replace("{model_id}", "demo")) for path in paths for method in paths[path]]
        public = {path for method, path in routes if (await locked.request(method, path, json={})).status_code != 401}
        assert len(routes) > 8
        assert public == {"/live", "/health", "/ping", "/version", "/metrics"}

    async def test_a_key_may_have_letters_beyond_ascii(self, generator):
        async with over(generator, api_keys=("schlüssel",)) as http:
            header = {b"Authorization": "Bearer schlüssel".encode()}
            assert (await http.get("/v1/models", headers=header)).status_code == 200
            assert (await http.get("/v1/models", headers={b"x-api-key": b"schl\xfcssel"})).status_code == 401


class TestRoutes:
    async def test_the_routes_of_other_servers_for_operators(self, http):
        project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
        answer = (await http.get("/version")).json()
        assert answer == {"version": project["version"]}
        assert_shape(Version, answer)
        assert (await http.get("/ping")).json() == (await http.get("/health")).json()

    @pytest.mark.parametrize(
        ("method", "path", "status", "code"),
        [
            ("GET", "/nope", 404, "not_found"),
            ("GET", GENERATE, 405, "method_not_allowed"),
            ("POST", "/health", 405, "method_not_allowed"),
        ],
    )
    async def test_an_unknown_route_or_method_is_named(self, http, method, path, status, code):
        response = await http.request(method, path)
        detail = problem(response, status)
        assert (detail["code"], detail["param"]) == (code, None)
        assert detail["message"].startswith(f"{method} {path}: ")
        assert ("allow" in response.headers) == (status == 405)

    @pytest.mark.parametrize(
        ("path", "hint"),
        [
            ("/generate/", "/generate"),
            ("/v1/chat/completions/", "/v1/chat/completions"),
            ("/chat/completions//", "/v1/chat/completions"),
            ("/v1//v1/messages", "/v1/messages"),
            ("/nope/", None),
        ],
    )
    async def test_a_slash_too_many_gets_a_hint(self, http, path, hint):
        response = await http.post("http://test" + path, json={})
        assert response.status_code == 404
        message = response.json()["error"]["message"]
        assert message.partition("; did you mean ")[2].partition("?")[0] == (hint or "")


class TestRequestIds:
    ROUTES = (("GET", "/health"), ("GET", "/metrics"), ("GET", "/v1/models"), ("GET", "/nope"), ("POST", GENERATE))

    @pytest.mark.parametrize(("method", "path"), ROUTES)
    async def test_every_response_has_an_id(self, http, method, path):
        made = {(await http.request(method, path)).headers["x-request-id"] for _ in range(3)}
        assert len(made) == 3
        again = await http.request(method, path, headers={"X-Request-Id": "mine-1.2:3_"})
        assert again.headers["x-request-id"] == "mine-1.2:3_"

    @pytest.mark.parametrize(
        ("sent", "request_id"), [("<b>a</b>\t!", "bab"), ("x" * 500, "x" * 128), ("a,b;c=d\u00e9", "abcd")]
    )
    async def test_an_id_of_the_client_is_cleaned(self, http, sent, request_id):
        response = await http.post(GENERATE, json={}, headers={b"X-Request-Id": sent.encode("latin-1")})
        assert problem(response, 422)["request_id"] == request_id

    async def test_an_id_of_which_nothing_is_left_is_replaced(self, http):
        assert len((await http.get("/health", headers={"X-Request-Id": "<>?"})).headers["x-request-id"]) == 16
