"""Every row of the contract's table of bad input: the status, the one shape of errors, what the message says."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from service.api.generator import Generator
from service.errors import EngineFailed, NotReady, QueueFull
from tests.api.generate.conftest import MakeGenerator
from tests.api.generate.helpers import (
    CASES,
    GENERATE,
    LENGTH,
    MASK,
    PROMPT,
    VOCABULARY,
    Held,
    Scripted,
    ask,
    body,
    over,
    problem,
    refused,
    stop_the_clock,
    streamed,
    words,
)

CHAT = [{"role": "user", "content": "a"}]


class TestBodies:
    @pytest.mark.parametrize(
        ("content", "said"),
        [
            (b"", "the body is not JSON"),
            (b"{", "the body is not JSON"),
            (b'{"prompt": "a",}', "the body is not JSON: trailing comma"),
            (b"{'prompt': 'a'}", "the body is not JSON"),
            (b"\xff\xfe", "the body is not JSON"),
            (b'{"prompt": "\xff"}', "the body is not JSON: invalid unicode"),
            (b'{"prompt": "\\ud800"}', "the body is not JSON"),
            (b'{"prompt": "a", "top_p": NaN}', "the body is not JSON"),
            (b"[" * 5000, "the body is not JSON: recursion limit"),
            (b'{"prompt": "a", "max_new_tokens": ' + b"9" * 5000 + b"}", "the body is not JSON: number out of range"),
            (b"[1, 2]", "the body is [1, 2], a JSON object is expected"),
            (b'"prompt"', 'the body is "prompt", a JSON object is expected'),
            (b"null", "the body is null, a JSON object is expected"),
        ],
    )
    async def test_that_are_no_json_object(self, http: httpx.AsyncClient, content: bytes, said: str) -> None:
        detail = problem(await http.post(GENERATE, content=content), 422)
        assert said in detail["message"]
        assert (detail["code"], detail["param"]) == ("invalid_request", None)
        assert len(detail["message"]) < 300

    async def test_the_declared_type_does_not_matter(self, http: httpx.AsyncClient) -> None:
        content = json.dumps(body()).encode()
        for kind in ("application/json", "text/plain", "application/x-www-form-urlencoded", ""):
            assert (await http.post(GENERATE, content=content, headers={"Content-Type": kind})).status_code == 200


class TestFields:
    @pytest.mark.parametrize(
        ("fields", "param", "said"),
        [
            ({"max_new_tokens": "12"}, "max_new_tokens", 'max_new_tokens is "12": Input should be a valid integer'),
            ({"max_new_tokens": 1.5}, "max_new_tokens", "max_new_tokens is 1.5"),
            ({"max_new_tokens": True}, "max_new_tokens", "max_new_tokens is true"),
            (
                {"max_new_tokens": 0},
                "max_new_tokens",
                "max_new_tokens is 0: Input should be greater than or equal to",
            ),
            ({"max_new_tokens": -1}, "max_new_tokens", "max_new_tokens is -1"),
            ({"temperature": "hot"}, "temperature", 'temperature is "hot"'),
            ({"temperature": -0.1}, "temperature", "temperature is -0.1: Input should be greater than or equal to 0"),
            ({"temperature": 101}, "temperature", "temperature is 101: Input should be less than or equal to 100"),
            ({"top_p": 0}, "top_p", "top_p is 0: Input should be greater than 0"),
            ({"top_p": 1.01}, "top_p", "top_p is 1.01: Input should be less than or equal to 1"),
            ({"top_k": -1}, "top_k", "top_k is -1: Input should be greater than or equal to 0"),
            ({"top_k": 2.5}, "top_k", "top_k is 2.5"),
            ({"seed": -1}, "seed", "seed is -1: Input should be greater than or equal to 0"),
            ({"seed": 2**63}, "seed", f"seed is {2**63}: Input should be less than or equal to {2**63 - 1}"),
            ({"stop": 5}, "stop", "stop is 5"),
            ({"stop": ""}, "stop.0", 'stop.0 is "": String should have at least 1 character'),
            ({"stop": ["a", ""]}, "stop.1", "stop.1"),
            ({"stop": ["a"] * 17}, "stop", "at most 16 items"),
            ({"stop_token_ids": 5}, "stop_token_ids", "stop_token_ids is 5"),
            ({"stop_token_ids": ["a"]}, "stop_token_ids.0", 'stop_token_ids.0 is "a"'),
            ({"ignore_eos": 1}, "ignore_eos", "ignore_eos is 1: Input should be a valid boolean"),
            ({"return_trace": "yes"}, "return_trace", 'return_trace is "yes"'),
            ({"timeout_s": 0}, "timeout_s", "timeout_s is 0: Input should be greater than 0"),
            ({"timeout_s": 600.5}, "timeout_s", "timeout_s is 600.5, allowed is 0 < timeout_s <= 600.0"),
            ({"prompt_token_ids": "12"}, "prompt_token_ids", 'prompt_token_ids is "12"'),
            ({"prompt_token_ids": [1, 2.5]}, "prompt_token_ids.1", "prompt_token_ids.1 is 2.5"),
            ({"prompt_token_ids": [1, True]}, "prompt_token_ids.1", "prompt_token_ids.1 is true"),
        ],
    )
    async def test_of_another_type_or_range(
        self, http: httpx.AsyncClient, fields: dict[str, Any], param: str, said: str
    ) -> None:
        detail = await refused(http, body(**fields))
        assert detail["code"] == "invalid_request"
        assert detail["param"] == param
        assert said in detail["message"]

    async def test_stream_itself(self, http: httpx.AsyncClient) -> None:
        detail = problem(await http.post(GENERATE, json=body(stream="yes")), 422)
        assert 'stream is "yes"' in detail["message"]

    @pytest.mark.parametrize("value", ["infinity", 1e999, "1e999"])
    async def test_infinite(self, http: httpx.AsyncClient, value: Any) -> None:
        shown = json.dumps(body(timeout_s=value)).replace("Infinity", "1e999")
        assert problem(await http.post(GENERATE, content=shown), 422)["param"] == "timeout_s"

    async def test_several_at_once_are_all_said(self, http: httpx.AsyncClient) -> None:
        detail = await refused(http, body(top_p=7, top_k=-7, seeds=1))
        for said in ("top_p is 7", "top_k is -7", "'seeds' is not a field; did you mean 'seed'?"):
            assert said in detail["message"]

    async def test_a_long_value_is_cut(self, http: httpx.AsyncClient) -> None:
        detail = await refused(http, body(top_p="x" * 10000))
        assert len(detail["message"]) < 300


class TestUnknownFields:
    @pytest.mark.parametrize(
        ("fields", "param", "said"),
        [
            ({"max_tokens": 5}, "max_tokens", "'max_tokens' is not a field; did you mean 'max_new_tokens'?"),
            ({"temprature": 5}, "temprature", "did you mean 'temperature'?"),
            ({"zzz": 5}, "zzz", "'zzz' is not a field; known are "),
            ({"": 5}, None, "is not a field; known are "),
            ({"static": 5}, "static", "'static' is not a field"),
            ({"mrp_step": 2}, "mrp_step", "did you mean 'mrp_steps'?"),
        ],
    )
    async def test_the_nearest_is_named(
        self, http: httpx.AsyncClient, fields: dict[str, Any], param: str | None, said: str
    ) -> None:
        detail = await refused(http, body(**fields))
        assert detail["param"] == param
        assert said in detail["message"]

    @pytest.mark.parametrize(
        ("mode", "knob", "users", "own"),
        [
            ("static", {"threshold": 0.5}, "dynamic, remask", "tokens_per_step"),
            ("static", {"mrp_steps": 2}, "direct, speculative", "tokens_per_step"),
            ("dynamic", {"tokens_per_step": 2}, "static", "threshold"),
            ("dynamic", {"mrp_steps": 2}, "direct, speculative", "threshold"),
            ("direct", {"threshold": 0.5}, "dynamic, remask", "mrp_steps"),
            ("speculative", {"tokens_per_step": 2}, "static", "mrp_steps"),
            ("speculative", {"threshold": 0.5}, "dynamic, remask", "mrp_steps"),
            ("remask", {"mrp_steps": 2}, "direct, speculative", "threshold"),
            (None, {"threshold": 0.5}, "dynamic, remask", "mrp_steps"),
        ],
    )
    async def test_a_knob_of_another_mode(
        self, http: httpx.AsyncClient, mode: str | None, knob: dict[str, Any], users: str, own: str
    ) -> None:
        (name,) = knob
        detail = await refused(http, body(mode=mode, **knob))
        assert detail["param"] == name
        wanted = f"mode {mode or 'speculative'!r} does not use {name} ({users} do); its knobs are {own}"
        assert detail["message"] == wanted

    @pytest.mark.parametrize("mode", ["fast", "", "STATIC", 5, [], {}, True])
    async def test_an_unknown_mode(self, http: httpx.AsyncClient, mode: Any) -> None:
        detail = await refused(http, body() | {"mode": mode})
        assert detail["param"] == "mode"
        allowed = "static, dynamic, direct, speculative, remask"
        assert detail["message"] == f"mode is {json.dumps(mode)}, allowed are {allowed}"

    @pytest.mark.parametrize(
        ("fields", "said"),
        [
            ({"mode": "static", "tokens_per_step": 9}, "tokens_per_step is 9, allowed are 1 to 8"),
            ({"mode": "static", "tokens_per_step": 0}, "tokens_per_step is 0"),
            ({"mode": "direct", "mrp_steps": 9}, "mrp_steps is 9, allowed are 1 to 8"),
            ({"mode": "speculative", "mrp_steps": 0}, "mrp_steps is 0"),
            ({"mode": "dynamic", "threshold": 0}, "threshold is 0: Input should be greater than 0"),
            ({"mode": "remask", "threshold": 1.1}, "threshold is 1.1: Input should be less than or equal to 1"),
            ({"mode": "dynamic", "threshold": "1"}, 'threshold is "1"'),
        ],
    )
    async def test_a_knob_out_of_range(self, http: httpx.AsyncClient, fields: dict[str, Any], said: str) -> None:
        detail = await refused(http, body(**fields))
        assert detail["param"] == list(fields)[1]
        assert said in detail["message"]


class TestPrompts:
    @pytest.mark.parametrize(
        ("fields", "param", "said"),
        [
            ({}, "messages", "none of them given, exactly one of prompt, prompt_token_ids, messages is allowed"),
            ({"prompt": "a", "prompt_token_ids": [1]}, "prompt_token_ids", "prompt and prompt_token_ids given"),
            ({"prompt": "a", "messages": CHAT}, "messages", "prompt and messages given"),
            (
                {"prompt": "a", "prompt_token_ids": [1], "messages": CHAT},
                "messages",
                "prompt and prompt_token_ids and messages given",
            ),
            ({"prompt": ""}, "prompt", 'prompt is "": String should have at least 1 character'),
            ({"prompt": " \n "}, "prompt", "the prompt is empty, at least one token is needed"),
            ({"prompt": ["a"]}, "prompt", 'prompt is ["a"]'),
            ({"prompt_token_ids": []}, "prompt_token_ids", "prompt_token_ids is []"),
            ({"messages": []}, "messages", "messages is []"),
            ({"messages": "a"}, "messages", 'messages is "a"'),
            ({"messages": [{"role": "user"}]}, "messages.0.content", "Field required"),
            ({"messages": [{"role": "robot", "content": "a"}]}, "messages.0.role", "'system', 'user' or 'assistant'"),
            (
                {"messages": [{"role": "user", "content": "a", "nam": "b"}]},
                "messages.0.nam",
                "'nam' is not a field of a message; ",
            ),
            ({"messages": CHAT}, "messages", "this checkpoint has no chat template; send `prompt` instead"),
        ],
    )
    async def test_one_that_is_not_empty(
        self, http: httpx.AsyncClient, fields: dict[str, Any], param: str, said: str
    ) -> None:
        detail = await refused(http, body(prompt_token_ids=None) | fields)
        assert detail["param"] == param
        assert said in detail["message"]

    @pytest.mark.parametrize(("prompt", "room"), [(8, 2040), (2047, 1), (2048, 0), (5000, 0)])
    async def test_too_long_says_both_numbers(self, http: httpx.AsyncClient, prompt: int, room: int) -> None:
        request = body(prompt_token_ids=[1] * prompt, max_new_tokens=room + 1)
        detail = await refused(http, request)
        assert (detail["code"], detail["param"]) == ("prompt_too_long", "max_new_tokens")
        asked = f"{prompt} prompt tokens and max_new_tokens {room + 1} are {prompt + room + 1} tokens"
        assert detail["message"] == f"{asked}, allowed are {LENGTH}"

    async def test_as_long_as_can_be(self, http: httpx.AsyncClient) -> None:
        assert len((await ask(http, body(prompt_token_ids=[1] * 2046, max_new_tokens=2)))["token_ids"]) <= 2

    @pytest.mark.parametrize("digits", [19, 400, 4300])
    async def test_absurd_lengths(self, http: httpx.AsyncClient, digits: int) -> None:
        detail = problem(await http.post(GENERATE, json=body(max_new_tokens=10**digits - 1)), 422)
        assert detail["param"] == "max_new_tokens"

    async def test_the_operators_length(self, make_generator: MakeGenerator) -> None:
        async with over(make_generator(max_model_len=30)) as http:
            assert "are 31 tokens, allowed are 30" in (await refused(http, body(max_new_tokens=23)))["message"]
            await ask(http, body(max_new_tokens=22))

    @pytest.mark.parametrize("token", [VOCABULARY, -1, 2**64])
    async def test_token_out_of_the_vocabulary(self, http: httpx.AsyncClient, token: int) -> None:
        detail = await refused(http, body(prompt_token_ids=[1, token]))
        assert detail["message"] == f"prompt_token_ids has {token}, allowed are 0 to {VOCABULARY - 1}"
        assert detail["param"] == "prompt_token_ids"

    async def test_the_mask_token(self, http: httpx.AsyncClient) -> None:
        detail = await refused(http, body(prompt_token_ids=[1, MASK]))
        assert detail["message"] == f"prompt_token_ids has the mask token {MASK}, which no prompt may hold"


class TestSizes:
    @pytest.fixture
    async def small(self, generator: Generator) -> AsyncIterator[httpx.AsyncClient]:
        async with over(generator, max_body_bytes=200) as http:
            yield http

    async def test_declared(self, small: httpx.AsyncClient) -> None:
        detail = problem(await small.post(GENERATE, content=b"x" * 201), 413)
        assert (detail["code"], detail["message"]) == ("body_too_large", "the body has 201 bytes, allowed are 200")

    async def test_declared_falsely_or_in_chunks(self, small: httpx.AsyncClient) -> None:
        async def chunks() -> AsyncIterator[bytes]:
            for _ in range(300):
                yield b"x"

        for headers in ({}, {"Content-Length": "3"}, {"Content-Length": "many"}):
            detail = problem(await small.post(GENERATE, content=chunks(), headers=headers), 413)
            assert detail["message"] == "the body has more than 200 bytes, allowed are 200"

    async def test_at_the_limit(self, small: httpx.AsyncClient) -> None:
        content = json.dumps(body()).encode().ljust(200)
        assert (await small.post(GENERATE, content=content)).status_code == 200
        assert problem(await small.post(GENERATE, content=content + b" "), 413)

    async def test_the_default_is_a_mebibyte(self, http: httpx.AsyncClient) -> None:
        assert "allowed are 1048576" in problem(await http.post(GENERATE, content=b" " * (2**20 + 1)), 413)["message"]


class TestKeys:
    ROUTES = (("POST", GENERATE), ("GET", "/v1/models"))

    @pytest.fixture
    async def locked(self, generator: Generator) -> AsyncIterator[httpx.AsyncClient]:
        async with over(generator, api_keys=("first", "second")) as http:
            yield http

    @pytest.mark.parametrize(("method", "path"), ROUTES)
    @pytest.mark.parametrize(
        ("headers", "said"),
        [
            ({}, "the API key is missing"),
            ({"Authorization": "Bearer wrong"}, "the API key is wrong"),
            ({"Authorization": "Bearer firs"}, "the API key is wrong"),
            ({"Authorization": "Bearer first second"}, "the API key is wrong"),
            ({"Authorization": "Bearer first,second"}, "the API key is wrong"),
            ({"Authorization": "Bearer "}, "the API key is missing"),
            ({"Authorization": "Basic first"}, "the API key is missing"),
            ({"Authorization": "first"}, "the API key is missing"),
            ({"x-api-key": "wrong"}, "the API key is wrong"),
            ({"x-api-key": "first", "Authorization": "Bearer wrong"}, "the API key is wrong"),
        ],
    )
    async def test_missing_or_wrong(
        self, locked: httpx.AsyncClient, method: str, path: str, headers: dict[str, str], said: str
    ) -> None:
        response = await locked.request(method, path, headers=headers)
        detail = problem(response, 401)
        assert detail["code"] == "unauthorized"
        assert detail["message"] == f"{said}; send `Authorization: Bearer <key>`"
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
    async def test_right(self, locked: httpx.AsyncClient, headers: dict[str, str]) -> None:
        assert (await locked.get("/v1/models", headers=headers)).status_code == 200
        assert (await locked.post(GENERATE, json=body(max_new_tokens=1), headers=headers)).status_code == 200

    async def test_are_asked_for_before_anything_else(self, locked: httpx.AsyncClient) -> None:
        problem(await locked.post(GENERATE, content=b"{" * 2**21), 401)

    @pytest.mark.parametrize("path", ["/health", "/metrics", "/openapi.json"])
    async def test_health_and_metrics_are_open(self, locked: httpx.AsyncClient, path: str) -> None:
        assert (await locked.get(path)).status_code == 200

    async def test_beyond_ascii(self, generator: Generator) -> None:
        async with over(generator, api_keys=("schlüssel",)) as http:
            header = {b"Authorization": "Bearer schlüssel".encode()}
            assert (await http.get("/v1/models", headers=header)).status_code == 200
            assert (await http.get("/v1/models", headers={b"x-api-key": b"schl\xfcssel"})).status_code == 401


class TestLoad:
    async def test_a_full_queue(self, make_generator: MakeGenerator) -> None:
        generator = make_generator(max_running=1, max_waiting=2)
        held = Held(generator)
        async with over(generator) as http:
            tasks = [asyncio.ensure_future(ask(http, body()))]
            await held.holds()
            tasks += [asyncio.ensure_future(ask(http, body())) for _ in range(2)]
            await held.queued(2)
            response = await http.post(GENERATE, json=body())
            detail = problem(response, 429)
            assert (detail["code"], detail["message"]) == ("queue_full", "2 requests are waiting, allowed are 2")
            assert int(response.headers["retry-after"]) >= 1
            assert (await refused(http, body(), 429))["code"] == "queue_full"
            held.released.set()
            answers = await asyncio.gather(*tasks)
            assert len({tuple(answer["token_ids"]) for answer in answers}) == 1
            await ask(http, body())

    @pytest.mark.parametrize("method_path", [("POST", GENERATE), ("GET", "/v1/models"), ("GET", "/health")])
    async def test_no_replica(self, method_path: tuple[str, str]) -> None:
        async with over(Scripted(down=NotReady("no replica is there yet: loading", retry_after=4.2))) as http:
            response = await http.request(*method_path, json=body())
            detail = problem(response, 503)
            assert (detail["code"], detail["message"]) == ("not_ready", "no replica is there yet: loading")
            assert response.headers["retry-after"] == "5"

    async def test_draining(self, make_generator: MakeGenerator) -> None:
        generator = make_generator()
        generator.close()
        async with over(generator) as http:
            assert (await refused(http, body(), 503))["message"] == "the server is shutting down"

    async def test_a_failed_engine(self, make_generator: MakeGenerator, caplog: pytest.LogCaptureFixture) -> None:
        generator = make_generator("r7")
        generator._worker._engine.step = lambda: 1 // 0  # type: ignore[assignment, return-value]
        async with over(generator) as http:
            assert (await http.get("/health")).json() == {"status": "ok", "replicas_ready": 1}
            assert problem(await http.post(GENERATE, json=body()), 500)["code"] == "engine_failed"
            for response in (await http.get("/health"), await http.post(GENERATE, json=body())):
                detail = problem(response, 503)
                assert detail["message"].startswith("no replica can generate: r7: ZeroDivisionError")
                assert response.headers["retry-after"] == "5"
        assert "the engine stopped" in caplog.text


class TestTimeOuts:
    async def test_before_the_first_token(self, make_generator: MakeGenerator) -> None:
        generator = make_generator()
        stop_the_clock(generator, until=lambda steps, events: steps > 0)
        async with over(generator) as http:
            detail = problem(await http.post(GENERATE, json=body(timeout_s=2.5, mode="direct")), 504)
            assert detail["code"] == "deadline_exceeded"
            assert detail["message"] == "timeout_s is 2.5, nothing was decoded by then"
        assert generator._worker.state().kv_pages_used == 0

    async def test_before_a_place_was_free(self, generator: Generator) -> None:
        async with over(generator) as http:
            detail = await refused(http, body(timeout_s=1e-9), 504)
            assert detail["param"] == "timeout_s"

    @pytest.mark.parametrize("stream", [False, True])
    async def test_with_a_part(self, make_generator: MakeGenerator, stream: bool) -> None:
        generator = make_generator()
        stop_the_clock(generator, until=lambda _, events: bool(events))
        async with over(generator) as http:
            answer = await (streamed if stream else ask)(http, body(max_new_tokens=500, ignore_eos=True))
        assert answer["finish_reason"] == "timeout"
        assert answer["token_ids"] == CASES[0]["token_ids"][:8]
        assert answer["text"] == words(CASES[0]["token_ids"][:8])
        assert answer["usage"] == {"prompt_tokens": len(PROMPT), "completion_tokens": 8, "total_tokens": 16}


class TestRoutes:
    @pytest.mark.parametrize(
        ("method", "path", "status", "code"),
        [
            ("GET", "/nope", 404, "not_found"),
            ("POST", "/nope", 404, "not_found"),
            ("GET", GENERATE, 405, "method_not_allowed"),
            ("PUT", GENERATE, 405, "method_not_allowed"),
            ("POST", "/health", 405, "method_not_allowed"),
        ],
    )
    async def test_that_are_not_there(
        self, http: httpx.AsyncClient, method: str, path: str, status: int, code: str
    ) -> None:
        response = await http.request(method, path)
        detail = problem(response, status)
        assert (detail["code"], detail["param"]) == (code, None)
        assert detail["message"].startswith(f"{method} {path}: ")
        assert ("allow" in response.headers) == (status == 405)


class TestUnexpected:
    @pytest.mark.parametrize("stream", [False, True])
    async def test_errors_are_a_500_that_tells_nothing(self, stream: bool, caplog: pytest.LogCaptureFixture) -> None:
        async with over(Scripted(RuntimeError("the secret"))) as http:
            response = await http.post(GENERATE, json=body(stream=stream), headers={"X-Request-Id": "r1"})
        detail = problem(response, 500)
        assert (detail["code"], detail["request_id"]) == ("internal_error", "r1")
        assert "secret" not in response.text
        assert "Traceback" not in response.text
        assert "r1 failed" in caplog.text
        assert "the secret" in caplog.text

    @pytest.mark.parametrize(
        ("error", "status"),
        [(QueueFull("full", retry_after=0.1), 429), (NotReady("gone", retry_after=1.0), 503), (EngineFailed("x"), 500)],
    )
    async def test_errors_of_a_backend_are_answers(self, error: Exception, status: int) -> None:
        async with over(Scripted(error)) as http:
            await refused(http, body(), status)


class TestRequestIds:
    ROUTES = (("GET", "/health"), ("GET", "/metrics"), ("GET", "/v1/models"), ("GET", "/nope"), ("POST", GENERATE))

    @pytest.mark.parametrize(("method", "path"), ROUTES)
    async def test_on_every_response(self, http: httpx.AsyncClient, method: str, path: str) -> None:
        made = {(await http.request(method, path)).headers["x-request-id"] for _ in range(3)}
        assert len(made) == 3
        kept = await http.request(method, path, headers={"X-Request-Id": "mine-1.2:3_"})
        assert kept.headers["x-request-id"] == "mine-1.2:3_"

    @pytest.mark.parametrize(
        ("sent", "kept"),
        [("<b>a</b>\t!", "bab"), ("x" * 500, "x" * 128), ("a,b;c=d\u00e9", "abcd")],
    )
    async def test_are_cleaned(self, http: httpx.AsyncClient, sent: str, kept: str) -> None:
        response = await http.post(GENERATE, json={}, headers={b"X-Request-Id": sent.encode("latin-1")})
        assert problem(response, 422)["request_id"] == kept

    async def test_of_which_nothing_is_left_are_made(self, http: httpx.AsyncClient) -> None:
        assert len((await http.get("/health", headers={"X-Request-Id": "<>?"})).headers["x-request-id"]) == 16

    async def test_stand_on_streams_too_and_may_be_used_twice(self, http: httpx.AsyncClient) -> None:
        headers = {"X-Request-Id": "same"}
        asked = [http.post(GENERATE, json=body(stream=True), headers=headers) for _ in range(3)]
        answers = await asyncio.gather(*asked)
        assert [(answer.status_code, answer.headers["x-request-id"]) for answer in answers] == [(200, "same")] * 3
