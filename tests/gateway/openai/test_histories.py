"""A conversation goes on: what the service has answered can be sent back, on every API, whatever is in it."""

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import jsonschema
import pytest

from service.replica.replica import Replica
from tests.gateway.apis import APIS, CHAT, COMPLETIONS, COUNT, GENERATE, MESSAGES, RESPONSES, ask, user
from tests.gateway.chatting import tokenizer
from tests.gateway.helpers import over
from tests.gateway.local import LinkedBackend
from tests.thinned import fast_only

LIMITS = {api.path: api.limit for api in APIS}
ANY: dict[str, Any] = {"type": "object"}
NUMBERS: dict[str, Any] = {
    "type": "object",
    "properties": {"i": {"type": "integer"}, "n": {"type": "number"}},
    "required": ["i", "n"],
}
NESTED: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"$ref": "#/$defs/list"}},
    "required": ["a"],
    "$defs": {
        "list": {"type": "array", "items": {"anyOf": [{"$ref": "#/$defs/list"}, {"type": "null"}]}, "minItems": 1}
    },
}
#: letters that answers of a seed prefer: long numbers, deep lists, halves of surrogate pairs
LIKED = ("", "7", "[", "\\ud8")
SCHEMAS = {"f": ANY, "numbers": NUMBERS, "nested": NESTED}


@pytest.fixture
async def http(caller: Replica) -> AsyncIterator[httpx.AsyncClient]:
    async with over(LinkedBackend(caller)) as client:
        yield client


def next_turn(path: str, answer: dict[str, Any]) -> list[Any]:
    """The answer in the form in which a client sends it back, with results of its calls and another message."""
    if path == GENERATE:
        return [{"role": "assistant", "content": answer["text"]}, *user("w6")]
    if path == CHAT:
        [choice] = answer["choices"]
        calls = choice["message"].get("tool_calls", ())
        results = [{"role": "tool", "tool_call_id": call["id"], "content": "17"} for call in calls]
        return [choice["message"], *results, *user("w6")]
    if path == RESPONSES:
        calls = [item for item in answer["output"] if item["type"] == "function_call"]
        results = [{"type": "function_call_output", "call_id": call["call_id"], "output": "17"} for call in calls]
        return [*answer["output"], *results, *user("w6")]
    calls = [block for block in answer["content"] if block["type"] == "tool_use"]
    results = [{"type": "tool_result", "tool_use_id": call["id"], "content": "17"} for call in calls]
    content = [*results, {"type": "text", "text": "w6"}]
    return [{"role": "assistant", "content": answer["content"]}, {"role": "user", "content": content}]


#: the form of a tool, and of the choice that a tool must be called
TOOLS: dict[str, tuple[Any, Any]] = {
    CHAT: (lambda name, schema: {"type": "function", "function": {"name": name, "parameters": schema}}, "required"),
    RESPONSES: (lambda name, schema: {"type": "function", "name": name, "parameters": schema}, "required"),
    MESSAGES: (lambda name, schema: {"name": name, "input_schema": schema}, {"type": "any"}),
}


@pytest.mark.parametrize("seed", fast_only({0, 1}.__contains__, range(12)))
@pytest.mark.parametrize("path", [GENERATE, CHAT, RESPONSES, MESSAGES])
async def test_an_answer_can_be_sent_back(http, path, seed):
    """Texts at a high temperature, and calls whose arguments have long numbers, deep lists or halves of characters."""
    temperature = 1.0 if path == MESSAGES else 1 + seed % 4 / 3
    body: dict[str, Any] = {"model": "golden", "temperature": temperature, "seed": seed}
    if path in TOOLS:
        tool, required = TOOLS[path]
        body["tools"] = [tool(name, schema) for name, schema in SCHEMAS.items()]
        body |= {"tool_choice": required} if seed % 3 else {}
        letters = LIKED[seed % len(LIKED)]
        body["logit_bias"] = {str(tokenizer().token_to_id(letter)): 4.0 for letter in letters}
    messages, field = user("w5"), "input" if path == RESPONSES else "messages"
    for limit in (160, 40):
        answer = await ask(http, path, body | {field: messages, LIMITS[path]: limit})
        messages = [*messages, *next_turn(path, answer)]
    if path == MESSAGES:
        await ask(http, COUNT, {"model": "golden", "tools": body["tools"], "messages": messages})


def nested(depth: int) -> str:
    return f'{{"a": {"[" * depth}1{"]" * depth}}}'


ARGUMENTS = {
    "20 digits": '{"id": 20240816000012345678}',
    "5000 digits": f'{{"id": {"9" * 5000}}}',
    "large float": '{"a": [1e400, -1e400, 1e-400, 12345678901234567890.5]}',
    "half a pair": '{"a": "x\\ud83d"}',
    "whole pair": '{"a": "\\ud83d\\ude00 \\\\ud83d"}',
    "cut": '{"a": [1, {"b": "c',
    "none": "",
    "no object": "[1]",
    "190 levels": nested(188),
    "1000 levels": nested(1000),
}


#: of the objects above, those that a body can hold as they are
OBJECTS = ("20 digits", "large float", "half a pair", "whole pair", "190 levels")


@pytest.mark.parametrize("name", ARGUMENTS)
async def test_a_call_with_any_arguments_can_be_sent_back(http, name):
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": ARGUMENTS[name]}}
    result: dict[str, Any] = {"role": "tool", "tool_call_id": "c", "content": "w6"}
    messages = [*user("w5"), {"role": "assistant", "content": None, "tool_calls": [call]}, result]
    await ask(http, CHAT, {"model": "golden", "max_tokens": 4, "messages": messages})
    item = {"type": "function_call", "call_id": "c", "name": "f", "arguments": ARGUMENTS[name]}
    result = {"type": "function_call_output", "call_id": "c", "output": "w6"}
    await ask(http, RESPONSES, {"model": "golden", "max_output_tokens": 4, "input": [*user("w5"), item, result]})
    if name in OBJECTS:
        block = {"type": "tool_use", "id": "c", "name": "f", "input": "INPUT"}
        result = {"type": "tool_result", "tool_use_id": "c", "content": "w6"}
        messages = [*user("w5"), {"role": "assistant", "content": [block]}, *user([result])]
        body = json.dumps({"model": "golden", "max_tokens": 4, "messages": messages})
        await ask(http, MESSAGES, body.replace('"INPUT"', ARGUMENTS[name]))


async def test_halves_of_characters_and_a_byte_order_mark(http):
    for path, body in (
        (GENERATE, {"messages": user("HALF"), "max_new_tokens": 2}),
        (CHAT, {"model": "golden", "messages": user("HALF"), "max_tokens": 2}),
        (RESPONSES, {"model": "golden", "input": "HALF", "max_output_tokens": 2}),
    ):
        text = json.dumps(body)
        tokens = [
            (await ask(http, path, text.replace("HALF", half)))["usage"]
            for half in ("w5\\ud83d", "w5\\udc00", "w5\ufffd")
        ]
        assert {usage.get("prompt_tokens", usage.get("input_tokens")) for usage in tokens} == {
            tokens[0].get("prompt_tokens", tokens[0].get("input_tokens"))
        }
        await ask(http, path, "\ufeff" + text)


CUSTOM = [
    {"id": "c", "type": "custom", "custom": {"name": "run", "input": "ls"}},
    {"id": "c", "type": "custom", "custom": {}},
    {"id": "c", "type": "mcp", "server": "x"},
]


@pytest.mark.parametrize("call", CUSTOM)
async def test_a_call_of_another_kind_can_be_sent_back(http, call):
    messages = [
        *user("w5"),
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "w6"},
    ]
    await ask(http, CHAT, {"model": "golden", "max_tokens": 4, "messages": messages})


async def test_a_custom_call_is_shown_like_a_functions_call(http):
    items: list[Any] = [
        *user("w5"),
        {"type": "custom_tool_call", "call_id": "c", "name": "run", "input": "ls"},
        {"type": "custom_tool_call_output", "call_id": "c", "output": "w6"},
    ]
    same = [
        items[0],
        {"type": "function_call", "call_id": "c", "name": "run", "arguments": '{"input": "ls"}'},
        {"type": "function_call_output", "call_id": "c", "output": "w6"},
    ]
    body = {"model": "golden", "max_output_tokens": 4}
    custom, function = [await ask(http, RESPONSES, {**body, "input": history}) for history in (items, same)]
    assert custom["usage"]["input_tokens"] == function["usage"]["input_tokens"]
    older = [
        *user("w5"),
        {"role": "assistant", "content": None, "function_call": {"name": "run", "arguments": '{"input": "ls"}'}},
        {"role": "function", "name": "run", "content": "w6"},
    ]
    chat = await ask(http, CHAT, {"model": "golden", "max_tokens": 4, "messages": older})
    assert chat["usage"]["prompt_tokens"] == function["usage"]["input_tokens"]


async def test_a_nested_null_counts_as_absent(http):
    tool = {"name": "f", "description": None, "parameters": None, "strict": None}
    stream = {"include_usage": None, "include_obfuscation": None}
    nulls: list[tuple[str, dict[str, Any]]] = [
        (CHAT, {"messages": user("w5"), "stream": True, "stream_options": stream}),
        (CHAT, {"messages": user("w5"), "tools": [{"type": "function", "function": tool}], "tool_choice": None}),
        (CHAT, {"messages": user("w5"), "chat_template_kwargs": {"enable_thinking": None}}),
        (CHAT, {"messages": [{"role": "user", "content": "w5", "tool_calls": None, "name": None}]}),
        (MESSAGES, {"messages": user("w5"), "tool_choice": {"type": "auto", "disable_parallel_tool_use": None}}),
        (
            MESSAGES,
            {"messages": user("w5"), "tools": [{"name": "f", "input_schema": {}, "type": None, "strict": None}]},
        ),
        (RESPONSES, {"input": "w5", "text": {"format": None}, "reasoning": {"effort": None}, "metadata": None}),
        (RESPONSES, {"input": [{"type": None, "role": "user", "content": "w5", "id": None}], "include": None}),
        (GENERATE, {"messages": user("w5"), "temperature": None, "stop": None, "mode": None, "model": None}),
    ]
    for path, body in nulls:
        response = await http.post(path, json={"model": "golden", LIMITS[path]: 2} | body)
        assert response.status_code == 200, (path, body, response.text)


@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES, GENERATE, COMPLETIONS])
async def test_a_float_without_a_fraction_is_a_whole_number(http, path):
    bodies: dict[str, dict[str, Any]] = {
        CHAT: {"model": "golden", "messages": user("w5"), "max_tokens": 16.0, "n": 1.0, "seed": 3.0, "top_k": 5.0},
        MESSAGES: {"model": "golden", "messages": user("w5"), "max_tokens": 16.0, "top_k": 5.0},
        RESPONSES: {"model": "golden", "input": "w5", "max_output_tokens": 16.0, "seed": 3.0},
        GENERATE: {"prompt_token_ids": [1.0, 2.0], "max_new_tokens": 16.0, "stop_token_ids": [3.0], "seed": -0.0},
        COMPLETIONS: {"model": "golden", "prompt": [1.0, 2], "max_tokens": 16.0, "logprobs": 1.0, "seed": -1.0},
    }
    await ask(http, path, bodies[path])
    for wrong in (16.5, "16", 1e400, True):
        response = await http.post(
            path, content=json.dumps(bodies[path] | {LIMITS[path]: wrong}).replace("Infinity", "1e400")
        )
        assert response.status_code in (400, 422), wrong


async def test_small_differences_of_clients(http):
    tool = {"function": {"name": "f"}}
    base = {"model": "golden", "messages": user("w5"), "max_tokens": 40}
    called = await ask(http, CHAT, {**base, "tools": [tool], "tool_choice": "any"})
    assert called["choices"][0]["message"]["tool_calls"]
    await ask(http, CHAT, {**base, "stop": ""})
    await ask(http, CHAT, {**base, "stop": ["", "w999"]})
    greedy, likeliest = [
        await ask(http, CHAT, {**base, **fields})
        for fields in ({"temperature": 0}, {"temperature": 1, "top_p": 0, "seed": 1})
    ]
    assert likeliest["choices"][0]["token_ids"] == greedy["choices"][0]["token_ids"]
    body = {"model": "golden", "input": "w5", "max_output_tokens": 40, "tools": [{"name": "f"}]}
    await ask(http, RESPONSES, body)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (GENERATE, {"prompt_token_ids": [1, 2**64]}, "prompt_token_ids.1"),
        (GENERATE, {"prompt": "w5", "logit_bias": {str(2**64): 1}}, f"logit_bias.{2**64}.[key]"),
        (COMPLETIONS, {"model": "golden", "prompt": [1, 2**64]}, "prompt"),
    ],
)
async def test_a_number_that_no_replica_can_be_sent_is_named(http, path, body, param):
    response = await http.post(path, json=body)
    assert response.status_code in (400, 422)
    assert response.json()["error"]["param"] == param
    await ask(http, GENERATE, {"prompt": "w5", "stop_token_ids": [2**64], "top_k": 2**64, "max_new_tokens": 2})


BAD: dict[str, Any] = {
    "2^64": {"type": "object", "properties": {"n": {"type": "integer", "maximum": 18446744073709552000}}},
    "1e400": {"type": "object", "properties": {"n": {"type": "number", "maximum": 1e308}, "m": {"const": 2**70}}},
    "no object": {"type": "array", "items": {"type": "null"}},
    "no type at all": {"type": "strin"},
    "names": {"properties": {"x-a": {"type": "null"}}, "required": ["x-a"], "patternProperties": {"^x-a$": {}}},
    "the same name": {"type": "object", "properties": {"n": {"enum": [1]}}},
}


@pytest.mark.parametrize("schema", BAD.values(), ids=BAD)
async def test_a_bad_tool_leaves_the_others_usable(http, schema):
    good = {"type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"]}
    name = "good" if schema is BAD["the same name"] else "bad"
    tools = [
        {"type": "function", "function": {"name": tool, "parameters": parameters}}
        for tool, parameters in (("good", good), (name, schema))
    ]
    body = {"model": "golden", "messages": user("w5"), "max_tokens": 200, "tools": tools}
    choice: Any = {"type": "function", "function": {"name": "good"}}
    for tool_choice in ("required", choice):
        answer = await ask(http, CHAT, {**body, "tool_choice": tool_choice, "temperature": 1, "seed": 1})
        for call in answer["choices"][0]["message"].get("tool_calls", ()):
            if (
                call["function"]["name"] == "good"
                and name == "bad"
                and answer["choices"][0]["finish_reason"] != "length"
            ):
                jsonschema.validate(json.loads(call["function"]["arguments"]), good)


async def test_answers_have_the_keys_that_clients_require(http):
    """OpenRouter's client refuses an answer without one of these keys, and a chunk whose fingerprint is null."""
    body = {"model": "golden", "messages": user("w5"), "max_tokens": 4}
    chat = await ask(http, CHAT, body)
    assert chat["system_fingerprint"].startswith("mrp-serve-")
    frames = (await http.post(CHAT, json={**body, "stream": True})).text.split("\n\n")
    first = json.loads(frames[0].removeprefix("data: "))
    assert first["system_fingerprint"] == chat["system_fingerprint"]
    penalties = {"frequency_penalty": 0.5, "presence_penalty": -0.5}
    body = {"model": "golden", "input": "w5", "tools": [{"name": "f", "parameters": ANY}], "tool_choice": "required"}
    for limit, status in ((4, "incomplete"), (400, "completed")):
        answer = await ask(http, RESPONSES, {**body, **penalties, "max_output_tokens": limit})
        assert answer["status"] == status
        assert (answer["completed_at"] is None) == (status == "incomplete")
        assert penalties.items() <= answer.items()
