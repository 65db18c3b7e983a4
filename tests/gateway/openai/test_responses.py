"""POST /v1/responses: whole and streamed, by OpenAI's own client, and with tools."""

import json
from typing import Any

import jsonschema
import openai
import pytest

from service.api.openai.responses.protocol import ResponseObject
from tests.gateway.apis import CHAT, RESPONSES, ask, chat, essence, response, stream_events
from tests.gateway.conftest import openai_client
from tests.gateway.helpers import application, assert_shape

NUMBER = {"type": "object", "properties": {"a": {"type": "integer", "maximum": 9}}, "required": ["a"]}
NUMBER |= {"additionalProperties": False}
ADD: Any = {"type": "function", "name": "add", "description": "Adds.", "parameters": NUMBER, "strict": True}


async def test_the_answer_is_that_of_a_chat(http):
    """A text and items in every form are the same conversation; instructions are a system message."""
    messages = [{"role": "system", "content": "w9"}, {"role": "user", "content": "w5 w6"}]
    openai_chat = await ask(http, CHAT, chat(messages=messages, max_tokens=20, mode="static", ignore_eos=True))
    text = openai_chat["choices"][0]["message"]["content"]
    parts = [{"type": "input_text", "text": "w5 "}, {"type": "input_text", "text": "w6"}]
    forms: list[Any] = ["w5 w6", [{"role": "user", "content": "w5 w6"}]]
    forms.append([{"type": "message", "role": "user", "content": parts}])
    for form in forms:
        answer = await ask(http, RESPONSES, response(form, instructions="w9", ignore_eos=True, metadata={"a": "b"}))
        assert_shape(ResponseObject, answer)
        [item] = answer["output"]
        assert [part["text"] for part in item["content"]] == [text]
        assert (answer["status"], item["status"]) == ("incomplete", "incomplete")
        assert answer["incomplete_details"] == {"reason": "max_output_tokens"}
        assert answer["usage"]["input_tokens"] == openai_chat["usage"]["prompt_tokens"]
        assert (answer["store"], answer["metadata"]) == (False, {"a": "b"})
    developer = [{"role": "developer", "content": "w9"}, {"role": "user", "content": "w5 w6"}]
    same = await ask(http, RESPONSES, response(developer, ignore_eos=True))
    assert same["output"][0]["content"] == item["content"]


@pytest.mark.parametrize("fields", [{}, {"temperature": 0.9, "mode": "speculative", "mrp_steps": 2}])
async def test_the_events_of_a_stream_make_the_whole_response(http, fields):
    whole = await ask(http, RESPONSES, response(return_trace=True, **fields))
    events = await stream_events(http, RESPONSES, response(return_trace=True, **fields))
    kinds = [event["type"] for event in events]
    assert kinds[:4] == ["response.created", "response.in_progress", "response.output_item.added",
                         "response.content_part.added"]  # fmt: skip
    assert essence(events[-1]["response"]) == essence(whole)
    deltas = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
    assert "".join(deltas) == whole["output"][0]["content"][0]["text"]
    assert len(deltas) > 1


async def test_openais_client_reads_it(app):
    fields: Any = {"model": "golden", "input": "w5 w6 w7", "max_output_tokens": 20}
    ours: Any = {"extra_body": {"mode": "static", "seed": 1, "ignore_eos": True}}
    async with openai_client(app) as client:
        whole = await client.responses.create(**fields, store=False, **ours)
        assert whole.usage.output_tokens == 20
        async with client.responses.stream(**fields, **ours) as stream:
            pieces = [event.delta async for event in stream if event.type == "response.output_text.delta"]
        assert "".join(pieces) == whole.output_text != ""
        raw = [event.type async for event in await client.responses.create(**fields, **ours, stream=True)]
        assert (raw[0], raw[-1]) == ("response.created", "response.incomplete")
        stopped = {**ours["extra_body"], "stop": whole.output_text.split()[5]}
        async with client.responses.stream(**fields, extra_body=stopped) as stream:
            final = await stream.get_final_response()
        assert final.status == "completed"
        assert whole.output_text.startswith(final.output_text)
        again: Any = [*whole.output, {"role": "user", "content": "w5"}]
        longer = await client.responses.create(model="golden", input=again, max_output_tokens=4)
        assert longer.usage.input_tokens > whole.usage.input_tokens
        with pytest.raises(openai.BadRequestError) as caught:
            await client.responses.create(**fields, previous_response_id=whole.id)
        assert "no response is stored" in caught.value.message


async def test_a_tool_is_called_and_its_result_is_read_by_openais_client(chatting):
    app = application(chatting)
    fields: Any = {"model": "golden", "tools": [ADD], "max_output_tokens": 120}
    fields |= {"tool_choice": "required", "parallel_tool_calls": False, "extra_body": {"mode": "static", "seed": 2}}
    conversation: Any = [{"role": "user", "content": "add"}]
    async with openai_client(app) as client:
        whole = await client.responses.create(**fields, input=conversation)
        call: Any = whole.output[-1]
        assert (call.type, call.name, whole.status) == ("function_call", "add", "completed")
        jsonschema.validate(json.loads(call.arguments), NUMBER)
        async with client.responses.stream(**fields, input=conversation) as stream:
            final = await stream.get_final_response()
        assert [item.type for item in final.output] == [item.type for item in whole.output]
        streamed: Any = final.output[-1]
        assert (streamed.name, streamed.arguments) == (call.name, call.arguments)
        result = {"type": "function_call_output", "call_id": call.call_id, "output": "2"}
        fields |= {"tool_choice": "auto", "max_output_tokens": 8}
        again = await client.responses.create(**fields, input=[*conversation, *whole.output, result])
        assert again.usage.input_tokens > whole.usage.input_tokens
        with pytest.raises(openai.BadRequestError) as caught:
            await client.responses.create(**fields, input=[*conversation, result])
        assert "no call before has this id" in caught.value.message
