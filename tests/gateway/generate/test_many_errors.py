"""Bodies with thousands of wrong values: short answers, little work, and they count as requests of their key."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.types import ASGIApp

from service.api.anthropic.protocol import MessagesRequest, PromptRequest
from service.api.content import MAX_FIELDS, MAX_PARTS, check_parts
from service.api.openai.protocol import ChatRequest, CompletionRequest
from service.api.openai.responses.protocol import ResponsesRequest
from service.api.protocol import GenerateBody
from service.api.score.protocol import ScoreRequest
from service.errors import MAX_MESSAGE, InvalidRequest
from tests.gateway.doubles import Scripted
from tests.gateway.generate.helpers import GENERATE, problem
from tests.gateway.helpers import application, keys_file, over

MODELS = [GenerateBody, ChatRequest, CompletionRequest, ResponsesRequest]
MODELS += [MessagesRequest, PromptRequest, ScoreRequest]
MANY = 5000
WRONG = [1] * MANY
NAMES = {f"k{number}": 1 for number in range(MANY)}
CALLING = {"model": "golden", "max_tokens": 4}
BODIES: list[tuple[str, dict[str, Any]]] = [
    (GENERATE, {"messages": WRONG}),
    (GENERATE, {"prompt": "a", **NAMES}),
    (GENERATE, {"prompt": "a", "response_format": {"type": "text", **NAMES}}),
    ("/v1/completions", {"model": "m" * 100_000, "prompt": "a"}),
    ("/v1/chat/completions", {**CALLING, "messages": WRONG, "n" * 100_000: 1}),
    ("/v1/chat/completions", {**CALLING, "messages": [{"role": "assistant", "tool_calls": WRONG}]}),
    ("/v1/responses", {"model": "golden", "input": [{"role": "user", "content": WRONG}], "include": WRONG}),
    ("/v1/messages", {**CALLING, "messages": [{"role": "user", "content": WRONG}], "system": WRONG}),
    ("/v1/score", {"model": "golden", "items": [{"messages": WRONG}, {"prompt_token_ids": ["a"] * MANY}]}),
]


def lists(schema: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(schema, Mapping):
        if schema.get("type") == "list":
            yield schema
        schema = [
            value for name, value in schema.items() if name not in {"metadata", "cls", "json_schema_input_schema"}
        ]
    if isinstance(schema, (list, tuple)):
        for part in schema:
            yield from lists(part)


@pytest.mark.parametrize("model", MODELS)
def test_the_first_wrong_item_ends_the_reading_of_its_list(model):
    assert [part for part in lists(model.__pydantic_core_schema__) if not part.get("fail_fast")] == []


@pytest.fixture(scope="module")
def app() -> ASGIApp:
    return application(Scripted())


@pytest.mark.parametrize(("path", "body"), BODIES)
async def test_a_refusal_is_short_for_any_number_of_errors(http, path, body):
    response = await http.post(path, json=body)
    assert response.status_code in {400, 404, 422}
    assert len(response.content) < 1.1 * MAX_MESSAGE + 200
    assert response.json()["error"]["message"]


async def test_further_errors_are_counted(http):
    form = {"response_format": {"type": "text", **NAMES}}
    detail = problem(await http.post(GENERATE, json={"prompt": "a", **form}), 422)
    assert detail["message"].count("'k") == 10
    assert detail["message"].endswith(f"; and {MANY - 10} more")


#: bodies with more wrong or unknown fields than are walked
LARGE = {f"k{number}": 1 for number in range(MAX_PARTS + 1)}
USER = {"role": "user"}
SAID = {**CALLING, "messages": [{**USER, "content": "a"}]}
TOO_MANY_FIELDS: list[tuple[str, dict[str, Any]]] = [
    (GENERATE, {"prompt": "a", **LARGE}),
    (GENERATE, {"prompt": "a", "response_format": {"type": "text", **LARGE}}),
    ("/v1/completions", {**CALLING, "prompt": "a", **LARGE}),
    ("/v1/chat/completions", SAID | LARGE),
    ("/v1/chat/completions", SAID | {"stream": True, "stream_options": LARGE}),
    ("/v1/chat/completions", SAID | {"tools": [{"type": "function", "function": {"name": "a", **LARGE}}]}),
    ("/v1/chat/completions", SAID | {"chat_template_kwargs": LARGE}),
    ("/v1/chat/completions", SAID | {"logit_bias": LARGE}),
    ("/v1/responses", {"model": "golden", "input": "a", **LARGE}),
    ("/v1/messages", SAID | LARGE),
    ("/v1/messages/count_tokens", SAID | LARGE),
    ("/v1/score", {"model": "golden", "items": [{"prompt": "a", **LARGE}]}),
    ("/v1/score", {"model": "golden", "items": [{"prompt": "a"}], **LARGE}),
]


@pytest.mark.parametrize(("path", "body"), TOO_MANY_FIELDS)
async def test_too_many_fields_are_refused_by_their_number(http, path, body):
    response = await http.post(path, json=body)
    assert response.status_code in {400, 422}
    message = response.json()["error"]["message"]
    assert message in {
        f"the body has {len(body)} fields, allowed are {MAX_FIELDS}",
        f"{len(LARGE)} fields of the body are wrong or not served, at most {MAX_PARTS} are named",
    }


RESULT = {"type": "tool_result", "tool_use_id": "a", "content": WRONG}
OUTPUT = {"type": "function_call_output", "call_id": "a", "output": WRONG}
TOO_MANY: list[tuple[str, str, Any]] = [
    (GENERATE, "messages", WRONG * 2),
    ("/v1/chat/completions", "messages", [{**USER, "content": WRONG}] * 2),
    ("/v1/chat/completions", "messages", [{"role": "assistant", "tool_calls": WRONG}] * 2),
    ("/v1/messages", "messages", [{**USER, "content": [RESULT, RESULT]}]),
    ("/v1/messages/count_tokens", "messages", [{**USER, "content": WRONG}] * 2),
    ("/v1/responses", "input", [OUTPUT, OUTPUT]),
    ("/v1/responses", "input", [{"type": "web_search_call"}] * 2 * MANY),
    ("/v1/score", "items", [{"messages": WRONG}] * 2),
]


@pytest.mark.parametrize(("path", "name", "items"), TOO_MANY)
async def test_too_many_parts_are_refused_whatever_they_are(http, path, name, items):
    response = await http.post(path, json={**CALLING, name: items})
    assert response.status_code in {400, 422}
    error = response.json()["error"]
    assert (error["param"], error["message"]) == (name, f"{name} has more than {MAX_PARTS} items with their parts")


def test_no_more_parts_are_walked_than_are_allowed():
    walked = 0

    class Watched(list[Any]):
        def __iter__(self) -> Iterator[Any]:
            nonlocal walked
            for item in super().__iter__():
                walked += 1
                yield item

    content = Watched([USER] * 100)
    check_parts({"messages": Watched([{**USER, "content": content}] * (MAX_PARTS // 101))})
    assert walked < MAX_PARTS
    walked = 0
    with pytest.raises(InvalidRequest):
        check_parts({"messages": Watched([{**USER, "content": content}] * MAX_PARTS)})
    with pytest.raises(InvalidRequest):
        check_parts({"messages": Watched([{**USER, "content": content}] * 1000)})
    assert walked < MAX_PARTS + 200


async def test_prompts_that_are_too_many_are_not_read(http):
    response = await http.post("/v1/completions", json={"model": "golden", "prompt": [[1]] * 129 + [{}]})
    assert "130 prompts are too many, allowed are 128" in response.json()["error"]["message"]


@pytest.fixture
def limited(tmp_path: Path) -> httpx.AsyncClient:
    http = over(Scripted(), api_keys_file=keys_file(tmp_path, secret={"requests_per_minute": 3}))
    http.headers["X-API-Key"] = "secret"
    return http


@pytest.mark.parametrize(
    "path", [GENERATE, "/v1/completions", "/v1/responses", "/v1/messages", "/v1/messages/count_tokens", "/v1/score"]
)
@pytest.mark.parametrize("content", [b"{", b'{"mode": 1}', b" " * 2**21], ids=["json", "fields", "size"])
async def test_a_refused_request_counts_as_one(limited, path, content):
    async with limited as http:
        statuses = [(await http.post(path, content=content)).status_code for _ in range(4)]
        listed = await http.get("/v1/models")
    assert (len({*statuses[:3]}), statuses[3]) == (1, 429)
    assert listed.status_code == 200


async def test_a_refused_request_is_not_read_when_the_limit_is_reached(limited):
    async def unread() -> Any:
        raise AssertionError("the body was read")
        yield b""

    async with limited as http:
        for _ in range(3):
            await http.post(GENERATE, content=json.dumps(WRONG))
        assert (await http.post(GENERATE, content=unread())).status_code == 429
