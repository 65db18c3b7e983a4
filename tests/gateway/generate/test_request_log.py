"""The line of every finished request: its fields, and that no other line has more of the request."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import httpx
import pytest

from service.gateway.ingress import Ingress
from service.gateway.request_log import note_request, with_request_log
from service.messages.wire import Chunk
from service.replica.replica import Replica
from service.settings.settings import Settings
from service.telemetry.logs import log_formatter
from tests.gateway.doubles import STATS, AsgiClient, Scripted
from tests.gateway.generate.helpers import GENERATE, PROMPT, body
from tests.gateway.helpers import application, over, read, replica_request_of
from tests.gateway.local import LocalBackend

MARK, KEY = "xylophone", "sk-tambourine"
SCOPE = {"type": "http", "method": "POST", "headers": [(b"x-request-id", b"r1")]}
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
Lines = Callable[[], list[dict[str, Any]]]
Errors = Callable[[], list[Any]]
Logged = Callable[[], str]


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Lines:
    """The lines so far, as the JSON that stands in the log."""
    caplog.set_level(logging.DEBUG, "service")
    formatter = log_formatter("json")

    def read() -> list[dict[str, Any]]:
        return [json.loads(formatter.format(record)) for record in caplog.records if record.name == "service.requests"]

    return read


class TestLines:
    @pytest.mark.parametrize("stream", [False, True])
    async def test_an_answer_has_a_line(self, http, lines, stream):
        http.headers["X-Request-Id"] = "r<1>"
        request = body(mode="speculative", mrp_steps=2)
        response = await http.post(GENERATE, json=request | {"stream": stream})
        (line,) = lines()
        answer = json.loads(response.text.split("data: ")[-1])
        assert {"time", "ms"} < set(line)
        stats = {
            name: answer["stats"][name] for name in ("tokens_per_forward", "queue_ms", "first_block_ms", "total_ms")
        }
        assert {name: value for name, value in line.items() if name not in {"time", "ms"}} == stats | {
            "message": "request",
            "level": "info",
            "logger": "service.requests",
            "request_id": "r1",
            "method": "POST",
            "route": GENERATE,
            "bytes": len(response.request.content),
            "status": 200,
            "id": answer["id"].removeprefix("gen-"),
            "mode": "speculative",
            "finish_reason": answer["finish_reason"],
            "prompt_tokens": len(PROMPT),
            "completion_tokens": answer["usage"]["completion_tokens"],
        }

    async def test_several_answers_are_added_up(self, http, lines):
        request = {"model": "golden", "prompt": [PROMPT, PROMPT], "max_tokens": 8, "mode": "static"}
        choices = (await http.post(COMPLETIONS, json=request)).json()["choices"]
        (line,) = lines()
        assert (line["answers"], line["completion_tokens"], line["tokens_per_forward"]) == (2, 16, 1.0)
        assert line["total_ms"] == max(choice["stats"]["total_ms"] for choice in choices)

    async def test_a_refusal_has_its_error(self, http, lines):
        await http.post(GENERATE, json=body(temperature=-1))
        (line,) = lines()
        assert (line["status"], line["error"]) == (422, "invalid_request")
        assert not {"mode", "id", "prompt_tokens"} & set(line)

    async def test_a_line_names_the_key(self, lines, generator):
        request = replica_request_of(generator.status().card, body(), tenant="team")

        async def app(scope: Any, receive: Any, send: Any) -> None:
            note_request(request, "model")

        await with_request_log(app, answers_id=True)({**SCOPE}, AsgiClient({}).receive, AsgiClient({}).send)
        (line,) = lines()
        assert (line["tenant"], line["mode"]) == ("team", "static")

    async def test_a_client_that_left_is_an_abort(self, make_generator, gate, settings, lines):
        generator = make_generator(deps=gate.deps)
        app = Ingress("i0", settings, LocalBackend(generator)).app(answers_request_id=True)
        gate.let(8)  # a block
        await AsgiClient(body(max_new_tokens=1000, ignore_eos=True, stream=True)).request(app)
        gate.release()
        (line,) = lines()
        assert (line["status"], line["finish_reason"]) == (200, "abort")

    async def test_requests_without_work_are_for_debugging(self, http, lines):
        await http.get("/health")
        await http.get("/v1/models/none")
        await http.get("/nowhere%0a")
        assert [(line["level"], line.get("route"), line["status"]) for line in lines()] == [
            ("debug", "/health", 200),
            ("debug", "/v1/models/{model_id:path}", 404),
            ("debug", None, 404),
        ]


class TestErrorsAfterTheAnswerBegan:
    """The HTTP server gets no error, since it would log the message. Each error is in our log once."""

    @pytest.fixture
    def errors(self, caplog: pytest.LogCaptureFixture) -> Errors:
        caplog.set_level(logging.DEBUG, "service")
        return lambda: [record for record in caplog.records if record.levelno >= logging.WARNING]

    async def test_an_unlogged_error_is_logged(self, errors):
        async def app(scope: Any, receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            raise ValueError(MARK)

        await with_request_log(app, answers_id=True)({**SCOPE}, AsgiClient({}).receive, AsgiClient({}).send)
        (record,) = errors()
        assert (record.levelname, record.request_id) == ("WARNING", "r1")
        assert "builtins.ValueError" in record.exception
        assert "test_request_log.py" in record.exception
        assert MARK not in record.exception

    async def test_an_error_before_the_answer_is_raised(self, errors):
        async def app(scope: Any, receive: Any, send: Any) -> None:
            raise ValueError(MARK)

        with pytest.raises(ValueError, match=MARK):
            await with_request_log(app, answers_id=True)({**SCOPE}, AsgiClient({}).receive, AsgiClient({}).send)
        assert errors() == []

    async def test_an_error_of_a_route_is_logged_once(self, errors):
        async with over(Scripted(down=ValueError(MARK))) as http:
            for method, path in (("POST", GENERATE), ("GET", "/v1/models")):
                assert (await http.request(method, path, json=body())).status_code == 500
        assert [record.message for record in errors()] == ["request failed"] * 2

    async def test_an_error_that_closes_a_stream_is_logged_once(self, errors):
        class Unclosable(Scripted):
            async def stream(self, request: Any) -> Any:
                try:
                    async for item in super().stream(request):
                        yield item
                finally:
                    raise ValueError(MARK)

        app = application(Unclosable(Chunk(0, "a", (1,), STATS), hangs=True))
        await AsgiClient(body(stream=True)).request(app)
        (record,) = errors()
        assert "builtins.ValueError" in record.exception
        assert MARK not in record.exception

    @pytest.mark.parametrize("version", ["2.3", "2.4"])
    async def test_a_client_that_leaves_is_no_error(self, errors, version):
        ingress = Ingress("i0", Settings(), Scripted(*[Chunk(0, "a", (1,), STATS)] * 2, hangs=True))
        await AsgiClient(body(stream=True), version).request(ingress.app(answers_request_id=True))
        assert errors() == []
        assert read(ingress.snapshot().families, "mrp_request_rejected_total") == 0


class TestSecrets:
    """Prompts, answers and keys are in no line of any logger, at any level, in either format."""

    @pytest.fixture
    def logged(self, capfd: pytest.CaptureFixture[str]) -> Iterator[Logged]:
        root, texts = logging.getLogger(), list[str]()
        formatters = [log_formatter("text"), log_formatter("json")]

        class Everything(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                texts.append(record.getMessage() + repr(vars(record)))
                texts.extend(formatter.format(record) for formatter in formatters)

        handler, level = Everything(logging.NOTSET), root.level
        root.addHandler(handler)
        root.setLevel(logging.DEBUG)
        logging.getLogger("service").setLevel(logging.DEBUG)
        yield lambda: "\n".join([*texts, *capfd.readouterr()])
        root.removeHandler(handler)
        root.setLevel(level)
        logging.getLogger("service").setLevel(logging.NOTSET)

    @pytest.fixture
    async def debugged_loop(self) -> None:
        loop = asyncio.get_running_loop()
        loop.set_debug(True)
        loop.slow_callback_duration = 0.0

    @pytest.fixture
    async def locked(self, generator: Replica) -> AsyncIterator[httpx.AsyncClient]:
        async with over(generator, api_keys=(KEY, "other")) as http:
            http.headers["Authorization"] = f"Bearer {KEY}"
            yield http

    BODIES: tuple[tuple[str, dict[str, Any]], ...] = (
        (GENERATE, {"prompt": f"w1 {MARK}", "max_new_tokens": 8}),
        (GENERATE, {"prompt_token_ids": PROMPT, "max_new_tokens": 8, "stop": MARK, "return_trace": True}),
        (COMPLETIONS, {"model": "golden", "prompt": f"w1 {MARK}", "echo": True, "max_tokens": 8}),
        (COMPLETIONS, {"model": "golden", "prompt": PROMPT, "logprobs": 1, "max_tokens": 8, "user": MARK}),
    )

    @pytest.mark.usefixtures("debugged_loop")
    @pytest.mark.parametrize("stream", [False, True])
    @pytest.mark.parametrize(("path", "request_body"), BODIES)
    async def test_answers_leave_no_text_in_the_log(self, locked, logged, path, request_body, stream):
        response = await locked.post(path, json=request_body | {"stream": stream})
        assert response.status_code == 200, response.text
        text = silent(logged())
        answer = response.json().get("text", "w1 w2 w3") if not stream else "w1 w2 w3"
        assert answer not in text

    @pytest.mark.usefixtures("debugged_loop")
    @pytest.mark.parametrize(
        ("path", "content"),
        [
            (GENERATE, json.dumps({"prompt": MARK, "temperature": MARK})),
            (GENERATE, json.dumps({"prompt": MARK, MARK: 1})),
            (GENERATE, json.dumps({"messages": [{"role": MARK, "content": MARK, MARK: 1}]})),
            (GENERATE, json.dumps({"prompt_token_ids": [*PROMPT, 10**6]})),
            (GENERATE, json.dumps({"messages": [{"role": "user", "content": MARK}], "max_new_tokens": 5000})),
            (GENERATE, f'{{"prompt": "{MARK}'),
            (COMPLETIONS, json.dumps({"model": "golden", "prompt": [MARK, 1]})),
            (CHAT, json.dumps({"model": "golden", "messages": [{"role": "user", "content": [MARK]}]})),
            (CHAT, json.dumps({"model": "golden", "messages": [], "logit_bias": {MARK: 1}})),
        ],
    )
    async def test_refusals_leave_no_text_in_the_log(self, locked, logged, path, content):
        assert (await locked.post(path, content=content)).status_code in {400, 422}
        silent(logged())

    @pytest.mark.parametrize("header", ["Authorization", "x-api-key"])
    async def test_keys_are_not_logged(self, locked, logged, header):
        del locked.headers["Authorization"]
        key = f"Bearer {KEY}-{MARK}" if header == "Authorization" else f"{KEY}-{MARK}"
        response = await locked.post(GENERATE, json={"prompt": MARK}, headers={header: key})
        assert response.status_code == 401
        assert KEY not in response.text + (await locked.get("/metrics")).text
        silent(logged())

    @pytest.mark.parametrize("stream", [False, True])
    @pytest.mark.parametrize("path", [GENERATE, COMPLETIONS])
    async def test_bugs_in_a_backend_leave_no_text_in_the_log(self, logged, path, stream):
        cause = KeyError(f"{MARK} {KEY} {PROMPT}")
        bug = RuntimeError(MARK)
        bug.__cause__ = cause
        async with over(Scripted(bug)) as http:
            request = {"prompt": MARK, "stream": stream} | ({"model": "golden"} if path == COMPLETIONS else {})
            response = await http.post(path, json=request, headers={"X-Request-Id": "r1"})
        assert (response.status_code, response.json()["error"]["code"]) == (500, "internal_error")
        assert MARK not in response.text
        text = silent(logged())
        assert '"request_id": "r1"' in text
        assert "builtins.RuntimeError" in text
        assert "builtins.KeyError" in text

    @pytest.mark.parametrize("stream", [False, True])
    async def test_bugs_in_a_replica_leave_no_text_in_the_log(self, make_generator, logged, monkeypatch, stream):
        generator = make_generator()

        def encode(text: str) -> list[int]:
            raise ValueError(f"cannot encode {text!r}")

        monkeypatch.setattr(generator.codec, "encode", encode)
        async with over(generator) as http:
            response = await http.post(
                GENERATE, json={"prompt": MARK, "stream": stream}, headers={"X-Request-Id": "r1"}
            )
        assert response.status_code == 500
        text = silent(logged())
        assert "builtins.ValueError" in text
        assert '"request_id": "r1"' in text

    async def test_a_logged_text_would_be_seen(self, logged):
        logging.getLogger("anything").debug("%s", {"prompt": MARK})
        with pytest.raises(AssertionError):
            silent(logged())


def silent(text: str) -> str:
    secrets = (MARK, KEY, ", ".join(map(str, PROMPT[:3])))
    assert not [secret for secret in secrets if secret in text]
    return text
