"""POST /v1/responses: whole and streamed, by OpenAI's own client, with tools, and what is refused for want of state."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import jsonschema
import openai
import pytest
from starlette.types import ASGIApp

from service.api.openai.responses.builder import OutputBuilder
from service.api.openai.responses.protocol import ResponseObject
from service.engine.request import Stats
from service.errors import DeadlineExceeded, QueueFull
from service.gateway.ingress import Ingress
from service.messages.wire import Chunk, Ending, Failure
from service.model import load_checkpoint
from service.replica.replica import Replica
from service.settings.settings import Settings
from service.text.tools import AnswerFormat
from tests.gateway.conftest import UNMEASURED
from tests.gateway.doubles import Dying, Scripted
from tests.gateway.helpers import assert_shape, over
from tests.gateway.local import LocalBackend
from tests.gateway.openai.helpers import CHAT, ask, chat, refused
from tests.replicas import local_generator

RESPONSES = "/v1/responses"
NUMBER = {"type": "object", "properties": {"a": {"type": "integer", "maximum": 9}}, "required": ["a"]}
NUMBER |= {"additionalProperties": False}
ADD: Any = {"type": "function", "name": "add", "description": "Adds.", "parameters": NUMBER, "strict": True}
#: what differs between two runs of one request
OF_A_RUN = {"id", "item_id", "call_id", "created_at", "cached_tokens", "tokens_per_forward_total", "prefill"}


def body(text: Any = "w5 w6 w7", /, **fields: Any) -> dict[str, Any]:
    whole = {"model": "golden", "input": text, "max_output_tokens": 20, "mode": "static", "seed": 1} | fields
    return {name: value for name, value in whole.items() if value is not None}


def essence(value: Any) -> Any:
    if isinstance(value, list):
        return [essence(one) for one in value]
    if not isinstance(value, dict):
        return round(value, 3) if isinstance(value, float) else value
    left_out = {name for name in value if name in OF_A_RUN or name.endswith("_ms")}
    return {name: essence(one) for name, one in value.items() if name not in left_out}


async def events(http: httpx.AsyncClient, request: dict[str, Any]) -> list[dict[str, Any]]:
    """The events of a stream, each named as its data says, numbered from 0."""
    response = await http.post(RESPONSES, json=request | {"stream": True})
    assert response.status_code == 200, response.text
    *frames, rest = response.text.split("\n\n")
    assert rest == ""
    found = []
    for number, frame in enumerate(frames):
        name, _, data = frame.partition("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
        assert found[-1]["sequence_number"] == number
    return found


async def test_the_answer_is_that_of_a_chat(http: httpx.AsyncClient) -> None:
    """A text and items in every form are the same conversation; instructions are a system message."""
    messages = [{"role": "system", "content": "w9"}, {"role": "user", "content": "w5 w6"}]
    theirs = await ask(http, CHAT, chat(messages=messages, max_tokens=20, mode="static", ignore_eos=True))
    text = theirs["choices"][0]["message"]["content"]
    parts = [{"type": "input_text", "text": "w5 "}, {"type": "input_text", "text": "w6"}]
    forms: list[Any] = ["w5 w6", [{"role": "user", "content": "w5 w6"}]]
    forms.append([{"type": "message", "role": "user", "content": parts}])
    for form in forms:
        answer = await ask(http, RESPONSES, body(form, instructions="w9", ignore_eos=True, metadata={"a": "b"}))
        assert_shape(ResponseObject, answer)
        [item] = answer["output"]
        assert [part["text"] for part in item["content"]] == [text]
        assert (answer["status"], item["status"]) == ("incomplete", "incomplete")
        assert answer["incomplete_details"] == {"reason": "max_output_tokens"}
        assert answer["usage"]["input_tokens"] == theirs["usage"]["prompt_tokens"]
        assert (answer["store"], answer["metadata"]) == (False, {"a": "b"})
    developer = [{"role": "developer", "content": "w9"}, {"role": "user", "content": "w5 w6"}]
    same = await ask(http, RESPONSES, body(developer, ignore_eos=True))
    assert same["output"][0]["content"] == item["content"]


@pytest.mark.parametrize("fields", [{}, {"temperature": 0.9, "mode": "speculative", "mrp_steps": 2}])
async def test_the_events_of_a_stream_make_the_whole_response(http: httpx.AsyncClient, fields: dict[str, Any]) -> None:
    whole = await ask(http, RESPONSES, body(return_trace=True, **fields))
    found = await events(http, body(return_trace=True, **fields))
    kinds = [event["type"] for event in found]
    assert kinds[:4] == ["response.created", "response.in_progress", "response.output_item.added",
                         "response.content_part.added"]  # fmt: skip
    assert essence(found[-1]["response"]) == essence(whole)
    deltas = [event["delta"] for event in found if event["type"] == "response.output_text.delta"]
    assert "".join(deltas) == whole["output"][0]["content"][0]["text"]
    assert len(deltas) > 1


async def test_openais_client_reads_it(app: ASGIApp) -> None:
    http = httpx.AsyncClient(transport=httpx.ASGITransport(app))
    asked: Any = {"model": "golden", "input": "w5 w6 w7", "max_output_tokens": 20}
    ours: Any = {"extra_body": {"mode": "static", "seed": 1, "ignore_eos": True}}
    async with openai.AsyncOpenAI(base_url="http://test/v1", api_key="k", max_retries=0, http_client=http) as client:
        whole = await client.responses.create(**asked, store=False, **ours)
        assert whole.usage
        assert whole.usage.output_tokens == 20
        async with client.responses.stream(**asked, **ours) as stream:
            pieces = [event.delta async for event in stream if event.type == "response.output_text.delta"]
        assert "".join(pieces) == whole.output_text != ""
        raw = [event.type async for event in await client.responses.create(**asked, **ours, stream=True)]
        assert (raw[0], raw[-1]) == ("response.created", "response.incomplete")
        stopped = {**ours["extra_body"], "stop": whole.output_text.split()[5]}
        async with client.responses.stream(**asked, extra_body=stopped) as stream:
            final = await stream.get_final_response()
        assert final.status == "completed"
        assert whole.output_text.startswith(final.output_text)
        again: Any = [*whole.output, {"role": "user", "content": "w5"}]
        longer = await client.responses.create(model="golden", input=again, max_output_tokens=4)
        assert longer.usage
        assert longer.usage.input_tokens > whole.usage.input_tokens
        with pytest.raises(openai.BadRequestError) as caught:
            await client.responses.create(**asked, previous_response_id=whole.id)
        assert "no response is stored" in caught.value.message


async def test_a_tool_is_called_and_its_result_is_read_by_openais_client(chatting: Replica) -> None:
    app = Ingress("i0", Settings(), LocalBackend(chatting)).app(answers_request_id=True)
    http = httpx.AsyncClient(transport=httpx.ASGITransport(app))
    asked: Any = {"model": "golden", "tools": [ADD], "max_output_tokens": 120}
    asked |= {"tool_choice": "required", "parallel_tool_calls": False, "extra_body": {"mode": "static", "seed": 2}}
    conversation: Any = [{"role": "user", "content": "add"}]
    async with openai.AsyncOpenAI(base_url="http://test/v1", api_key="k", max_retries=0, http_client=http) as client:
        whole = await client.responses.create(**asked, input=conversation)
        call: Any = whole.output[-1]
        assert (call.type, call.name, whole.status) == ("function_call", "add", "completed")
        jsonschema.validate(json.loads(call.arguments), NUMBER)
        async with client.responses.stream(**asked, input=conversation) as stream:
            final = await stream.get_final_response()
        assert [item.type for item in final.output] == [item.type for item in whole.output]
        streamed: Any = final.output[-1]
        assert (streamed.name, streamed.arguments) == (call.name, call.arguments)
        answered = {"type": "function_call_output", "call_id": call.call_id, "output": "2"}
        asked |= {"tool_choice": "auto", "max_output_tokens": 8}
        again = await client.responses.create(**asked, input=[*conversation, *whole.output, answered])
        assert again.usage
        assert whole.usage
        assert again.usage.input_tokens > whole.usage.input_tokens
        with pytest.raises(openai.BadRequestError) as caught:
            await client.responses.create(**asked, input=[*conversation, answered])
        assert "no call before has this id" in caught.value.message


TOLD = '<think>\nhm\n</think>\n\nLet me.<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'


@pytest.mark.parametrize("width", [1, 5, len(TOLD)])
def test_items_are_the_same_for_any_cut(width: int) -> None:
    output = OutputBuilder(AnswerFormat("qwen3", "may"))
    pieces = [TOLD[at : at + width] for at in range(0, len(TOLD), width)]
    found = [*(event for piece in pieces for event in output.push(piece)), *output.finish(complete=True)]
    assert [item["type"] for item in output.items] == ["reasoning", "message", "function_call"]
    thought, said, called = output.items
    assert (thought["content"][0]["text"], said["content"][0]["text"]) == ("hm", "Let me.")
    assert (called["name"], called["arguments"], called["status"]) == ("add", '{"a": 1}', "completed")
    done = [event["item"] for event in found if event["type"] == "response.output_item.done"]
    assert done == output.items
    added = [event["output_index"] for event in found if event["type"] == "response.output_item.added"]
    assert added == [0, 1, 2]


@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id", "no response is stored"),
        ({"conversation": "c"}, "conversation", "use 'input'"),
        ({"input": [{"type": "item_reference", "id": "a"}]}, "input.0", "set `store: false` in the client"),
        ({"input": []}, "input", "at least 1 item"),
        ({"input": [{"type": "reasoning", "id": "a", "summary": []}]}, "input", "no message"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input.0.content.0", "reads text only"),
        ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input.0.message.content.0.text", "text"),
        ({"tools": [ADD]}, "tools", "tools are given, and"),
        ({"tool_choice": "required"}, "tool_choice", "there are no tools"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.json_schema.schema", "is missing"),
        ({"max_tokens": 5}, "max_tokens", "use 'max_output_tokens'"),
        ({"max_output_tokens": 0}, "max_output_tokens", "max_output_tokens is 0"),
        ({"temperature": 2.5}, "temperature", "0 to 2"),
    ],
)
async def test_a_refusal_names_the_field(
    http: httpx.AsyncClient, fields: dict[str, Any], param: str, said: str
) -> None:
    error = await refused(http, RESPONSES, body(**fields))
    assert (error["param"], error["type"]) == (param, "invalid_request_error")
    assert said in error["message"]


@pytest.mark.parametrize("stream", [False, True])
async def test_errors_before_and_in_the_midst(stream: bool) -> None:
    for error in (QueueFull("full", retry_after=2.5), DeadlineExceeded("late")):
        async with over(Scripted(Failure(error))) as http:
            response = await http.post(RESPONSES, json=body(stream=stream))
            assert response.status_code == error.status
    chunk = Chunk(0, "a", (1,), Stats(), prompt_tokens=3)
    async with over(Scripted(chunk, ZeroDivisionError("secret"))) as http:
        *_, last = await events(http, body())
        assert (last["type"], last["code"]) == ("error", "internal_error")
        assert "secret" not in json.dumps(last)
    async with over(Scripted(chunk, Ending("timeout", 3, 1, Stats()))) as http:
        answer = await ask(http, RESPONSES, body())
        assert (answer["status"], answer["stats"]["finish_reason"]) == ("incomplete", "timeout")


@pytest.fixture(scope="module")
def other(settings: Settings) -> Iterator[Replica]:
    made = local_generator("r1", load_checkpoint(settings.model), settings, deps=UNMEASURED)
    yield made
    made.close()


async def test_streams_cut_after_every_block(generator: Replica, other: Replica) -> None:
    request = body(max_output_tokens=30, temperature=0.9, ignore_eos=True)
    async with over(other) as http:
        undisturbed = essence(await events(http, request))
    for after in range(9):
        backend = Dying(generator, other, after)
        async with over(backend) as http:
            assert essence(await events(http, request)) == undisturbed, after
        if len(backend.requests) == 1:
            break
    assert after > 2
