"""What is refused: by name, with OpenAI's error fields, and counted."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from starlette.types import ASGIApp

from service.gateway.ingress import Ingress
from service.replica.replica import Replica
from service.settings.settings import Settings
from tests.gateway.doubles import Scripted
from tests.gateway.helpers import over
from tests.gateway.local import LocalBackend
from tests.gateway.openai.helpers import CHAT, COMPLETIONS, ask, chat, completion, refused


@pytest.mark.parametrize(
    ("path", "body", "param", "said"),
    [
        (COMPLETIONS, completion(presence_penalty=2.5), "presence_penalty", "presence_penalty is 2.5: Input should be"),
        (COMPLETIONS, completion(logit_bias={"5": 101}), "logit_bias", "logit_bias.5 is 101: Input should be"),
        (COMPLETIONS, completion(suffix="w1"), "suffix", "not served"),
        (CHAT, chat(tools=[{"type": "function"}]), "tools", "tools.0.function is"),
        (COMPLETIONS, completion(tools=[{"type": "function"}]), "tools", "not served"),
        (CHAT, chat(response_format={"type": "xml"}), "response_format", "json_schema"),
        (COMPLETIONS, completion(max_new_tokens=1), "max_new_tokens", "use 'max_tokens'"),
        (CHAT, chat(stop_sequences=["w1"]), "stop_sequences", "use 'stop'"),
        (CHAT, chat(functions=[{"name": "add"}]), "functions", "use 'tools'"),
        (COMPLETIONS, completion(messages=[]), "messages", "use 'prompt'"),
        (COMPLETIONS, completion(temperature=-1), "temperature", "temperature is -1"),
        (COMPLETIONS, completion(temperature=2.01), "temperature", "temperature is 2.01, allowed are 0 to 2"),
        (CHAT, chat(temperature=100), "temperature", "temperature is 100, allowed are 0 to 2"),
        (COMPLETIONS, completion(n=0), "n", "n is 0"),
        (COMPLETIONS, completion(n=64, prompt=[[5], [6], [7]]), "n", "192 answers, allowed are 128"),
        (COMPLETIONS, completion(max_tokens=0), "max_tokens", "max_tokens is 0"),
        (COMPLETIONS, completion(prompt=[5] * 2048), "max_tokens", "2048 prompt tokens and max_tokens 1 are 2049"),
        (COMPLETIONS, completion(prompt=[509]), "prompt", "prompt has the mask token"),
        (COMPLETIONS, completion(prompt=[512]), "prompt", "0 to 511"),
        (COMPLETIONS, completion(prompt=[]), "prompt", "a text, token ids, or a list"),
        (COMPLETIONS, completion(prompt=["w5", [5]]), "prompt", "a text, token ids, or a list"),
        (COMPLETIONS, completion(prompt=[True]), "prompt", "a text, token ids, or a list"),
        (COMPLETIONS, completion(prompt=""), "prompt", 'prompt is ""'),
        (COMPLETIONS, {"model": "golden"}, "prompt", "prompt is missing"),
        (CHAT, {"messages": []}, "model", "model is missing"),
        (CHAT, chat(messages=[]), "messages", "messages is []"),
        (COMPLETIONS, completion(echo=True), "echo", "prompts that are texts"),
        (COMPLETIONS, completion(mode="static", threshold=0.5), "threshold", "mode 'static' does not use threshold"),
        (COMPLETIONS, completion(mode="fast"), "mode", "allowed are static"),
        (COMPLETIONS, completion(stream_options={"include_usage": True}), "stream_options", "need stream true"),
        (CHAT, chat(max_completion_tokens=3), "max_tokens", "16 and max_completion_tokens 3"),
        (COMPLETIONS, completion(timeout_s=1e9), "timeout_s", "allowed is 0 < timeout_s"),
    ],
)
async def test_a_refusal_names_the_field(
    http: httpx.AsyncClient, path: str, body: dict[str, Any], param: str, said: str
) -> None:
    error = await refused(http, path, body)
    assert error["param"].split(".")[0] == param
    assert said in error["message"]
    assert error["type"] == "invalid_request_error"


async def test_a_stream_that_cannot_begin_has_its_own_status(http: httpx.AsyncClient) -> None:
    error = await refused(http, COMPLETIONS, completion(stream=True, prompt=[[509], [509]]))
    assert (error["code"], error["param"]) == ("invalid_request", "prompt")


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
async def test_an_unknown_model_is_404_naming_the_one_there_is(http: httpx.AsyncClient, path: str) -> None:
    body = (completion() if path == COMPLETIONS else chat()) | {"model": "gpt-4"}
    error = await refused(http, path, body, 404)
    assert error["message"] == "model is 'gpt-4', served is 'golden'"
    assert (error["param"], error["code"], error["type"]) == ("model", "unknown_model", "not_found_error")


async def test_bodies_that_are_none(http: httpx.AsyncClient) -> None:
    for content, status in ((b"{", 400), (b"[]", 400), (b'{"prompt": "' + b"w" * 2**20 + b'"}', 413)):
        response = await http.post(COMPLETIONS, content=content)
        assert (response.status_code, response.json()["error"]["type"]) == (status, "invalid_request_error")


async def test_a_model_by_its_name(http: httpx.AsyncClient) -> None:
    listed = (await http.get("/v1/models")).json()["data"]
    assert (await http.get("/v1/models/golden")).json() == listed[0]
    missing = await http.get("/v1/models/org/other")
    assert missing.status_code == 404
    assert "served is 'golden'" in missing.json()["error"]["message"]


@pytest.fixture
def locked(settings: Settings, generator: Replica) -> ASGIApp:
    keyed = Settings(**settings.model_dump() | {"api_keys": "right"})
    return Ingress("i1", keyed, LocalBackend(generator)).app(answers_request_id=True)


async def test_keys_are_asked_for_on_every_route(locked: ASGIApp) -> None:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(locked), base_url="http://test") as http:
        for method, path in (("POST", COMPLETIONS), ("POST", CHAT), ("GET", "/v1/models/golden")):
            response = await http.request(method, path, json={})
            assert response.status_code == 401
            assert response.headers["www-authenticate"] == "Bearer"
            assert response.json()["error"]["type"] == "authentication_error"
        http.headers["authorization"] = "Bearer right"
        await ask(http, COMPLETIONS, completion(max_tokens=1))


async def test_refusals_are_counted(generator: Replica) -> None:
    async with over(generator) as http:
        await refused(http, COMPLETIONS, completion(n=0))
        await refused(http, CHAT, chat(n=0))
        await refused(http, CHAT, chat(model="other"), 404)
        page = (await http.get("/metrics")).text
    assert 'mrp_request_rejected_total{reason="invalid_request",replica="i0"} 2.0' in page
    assert 'mrp_request_rejected_total{reason="unknown_model",replica="i0"} 1.0' in page


async def test_the_documentation_has_the_routes_and_their_fields(http: httpx.AsyncClient) -> None:
    paths = (await http.get("/openapi.json")).json()["paths"]
    for path in (COMPLETIONS, CHAT):
        schema = paths[path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        assert {"model", "n", "max_tokens", "stream_options", "seed", "threshold", "mode"} <= set(schema["properties"])
        assert "$ref" not in str(schema)
        assert schema["properties"]["temperature"]["maximum"] == 2


@pytest.mark.parametrize(
    ("method", "path", "status", "kind"),
    [
        ("GET", "/v1/nope", 404, "not_found_error"),
        ("GET", "/v1/completions", 405, "invalid_request_error"),
        ("PUT", "/v1/models", 405, "invalid_request_error"),
    ],
)
async def test_errors_of_the_router_have_a_type_too(
    http: httpx.AsyncClient, method: str, path: str, status: int, kind: str
) -> None:
    response = await http.request(method, path)
    assert (response.status_code, response.json()["error"]["type"]) == (status, kind)


async def test_other_routes_have_none(http: httpx.AsyncClient) -> None:
    assert "type" not in (await http.get("/nope")).json()["error"]


async def test_bugs_have_a_type_too() -> None:
    async with over(Scripted(RuntimeError("bug"))) as http:
        response = await http.post(COMPLETIONS, json=completion())
    assert (response.status_code, response.json()["error"]["type"]) == (500, "server_error")
