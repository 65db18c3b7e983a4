"""What Serve's proxies answer when the ingress behind them is lost."""

import json
from typing import Any

import httpx
import pytest
from starlette.types import Message, Receive, Scope, Send

from service.api.streams import MEDIA_TYPE
from service.hooks import proxy_middleware

BEGUN = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", MEDIA_TYPE.encode())]}
BLOCK = {"type": "http.response.body", "body": b"event: block\ndata: {}\n\n", "more_body": True}
END = {"type": "http.response.body", "body": b"", "more_body": False}


async def answer(
    *messages: Message,
    path: str = "/generate",
    headers: dict[str, str] | None = None,
    method: str = "POST",
    healthy: bool = True,
) -> httpx.Response:
    """The response of a proxy whose ingress sends these messages and no more. `healthy`: by its own /-/healthz."""

    async def proxy(scope: Scope, receive: Receive, send: Send) -> None:
        if (scope["path"], scope["method"]) == ("/-/healthz", "GET"):
            await send({"type": "http.response.start", "status": 200 if healthy else 503, "headers": []})
            await send(
                {"type": "http.response.body", "body": b"success" if healthy else b"This node is being drained."}
            )
            return
        for message in messages:
            await send(message)

    app: Any = proxy
    for middleware in proxy_middleware():  # as Serve applies them
        app = middleware.cls(app, *middleware.args, **middleware.kwargs)
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://proxy") as http:
        return await http.request(method, path, json={}, headers=headers)


async def test_an_answer_that_has_not_begun_is_an_error_to_try_again():
    response = await answer(headers={"X-Request-Id": "mi ne\x7f"})
    assert (response.status_code, response.headers["retry-after"]) == (503, "1")
    assert response.headers["x-request-id"] == "mine"
    error = response.json()["error"]
    assert (error["code"], error["request_id"]) == ("ingress_lost", "mine")


@pytest.mark.parametrize(
    ("path", "kind"), [("/v1/chat/completions", "server_error"), ("/v1/messages", "overloaded_error")]
)
async def test_each_api_gets_its_own_shape(path, kind):
    response = await answer(path=path)
    assert response.status_code == 503
    assert response.json()["error"]["type"] == kind
    assert response.headers["x-request-id"] in response.text


async def test_a_stream_that_has_begun_ends_with_an_error():
    response = await answer(BEGUN, BLOCK)
    block, error = response.text.strip().split("\n\n")
    assert block == "event: block\ndata: {}"
    assert error.startswith("event: error\ndata: ")
    assert json.loads(error.partition("data: ")[2])["error"]["code"] == "ingress_lost"


async def test_whole_responses_pass_unchanged():
    assert (await answer(BEGUN, BLOCK, END)).text.count("event: ") == 1


@pytest.mark.parametrize(
    ("path", "method", "healthy", "status"),
    [
        ("/health", "GET", True, 200),
        ("/health", "GET", False, 503),
        ("/health", "HEAD", False, 503),
        ("/ping", "GET", False, 503),
        ("/generate", "POST", False, 200),  # a proxy that drains still answers
        ("/live", "GET", False, 200),
        ("/-/healthz", "GET", False, 503),
    ],
)
async def test_the_health_is_also_that_of_the_proxy(path, method, healthy, status):
    response = await answer(BEGUN, END, path=path, method=method, healthy=healthy, headers={"X-Request-Id": "mine"})
    assert response.status_code == status
    if path == "/health" and not healthy:
        assert (response.headers["retry-after"], response.headers["x-request-id"]) == ("1", "mine")
        error = response.json()["error"] if method == "GET" else None
        assert error is None or (error["code"], "This node is being drained." in error["message"]) == (
            "not_ready",
            True,
        )
