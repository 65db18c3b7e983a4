"""The requests of clients as they send them: one file a client, with its version and where the bodies were seen.

A request without `status` is answered. `ignored`: the fields that the answer names. `constrained`: the answer
has a constraint.
"""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from service.model import load_checkpoint
from service.replica.replica import Replica
from service.settings.settings import Settings
from tests.gateway.chatting import liking
from tests.gateway.conftest import UNMEASURED
from tests.gateway.helpers import over
from tests.replicas import local_generator

CLIENTS = {file.stem: json.loads(file.read_text("utf-8")) for file in sorted(Path(__file__).parent.glob("*.json"))}
REQUESTS = [
    pytest.param(request, id=f"{name}: {request['name']}")
    for name, content in CLIENTS.items()
    for request in content["requests"]
]
#: how the last event of a stream begins
LAST = ("data: [DONE]", "event: message_stop", "event: response.completed", "event: response.incomplete")


@pytest.fixture(scope="module")
def terse(qwen3_settings: Settings) -> Iterator[Replica]:
    """A replica that chats as Qwen3 does and soon ends its answers: clients allow thousands of tokens."""
    settings = qwen3_settings.model_copy(update={"max_model_len": None})
    checkpoint = liking(load_checkpoint(settings.model), "<|im_end|>")
    with closing(local_generator("r0", checkpoint, settings, deps=UNMEASURED)) as generator:
        yield generator


@pytest.fixture
async def http(terse: Replica) -> AsyncIterator[httpx.AsyncClient]:
    async with over(terse, default_max_tokens=16, allowed_origins=("https://chat.example",)) as http:
        yield http


@pytest.mark.parametrize("request_", REQUESTS)
async def test_a_client_gets_the_answer_or_the_error_that_it_understands(http, request_):
    method, body = request_.get("method", "POST"), request_["body"]
    response = await http.request(method, request_["path"], json=body, headers=request_.get("headers", {}))
    assert response.status_code == request_.get("status", 200), response.text
    if response.status_code != 200:
        error = response.json()["error"]
        assert error["code"] == request_["code"]
        assert request_["message"] in error["message"]
        return
    named = response.headers.get("x-ignored-fields", "")
    assert sorted(filter(None, named.split(", "))) == request_["ignored"]
    if method != "POST":
        assert response.headers.get("access-control-allow-origin", "") in {"", "https://chat.example"}
    elif body.get("stream"):
        assert response.text.rstrip("\n").rpartition("\n\n")[2].startswith(LAST)
    else:
        answer = response.json()
        assert answer.keys() & {"choices", "output", "content"}
        if request_.get("constrained"):
            assert "constraint_met" in answer["choices"][0]
