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


async def answer(*messages: Message, path: str = "/generate", headers: dict[str, str] | None = None) -> httpx.Response:
    """The response of a proxy whose ingress sends these messages and no more."""

    async def proxy(scope: Scope, receive: Receive, send: Send) -> None:
        for message in messages:
            await send(message)

    app: Any = proxy
    for middleware in proxy_middleware():  # as Serve applies them
        app = middleware.cls(app, *middleware.args, **middleware.kwargs)
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://proxy") as http:
        return await http.post(path, json={}, headers=headers)


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
