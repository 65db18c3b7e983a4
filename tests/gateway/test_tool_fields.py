"""Tools whose names or schemas a call cannot hold are served with the others, on each route that takes tools."""

import json
from typing import Any

import jsonschema
import pytest

from service.text.tools import Tool, ToolUse
from service.text.tools.calls import MAX_TOOLS
from tests.gateway.apis import CHAT, MESSAGES, RESPONSES, ask, chat_message, refused, stream_events, user, whole_message
from tests.gateway.helpers import over

SCHEMA = {"type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"], "additionalProperties": False}
#: names -> those in the prompt and in the model's calls
NAMES = {
    "add": "add",
    "查询天气": "查询天气",
    "mcp:read": "mcp:read",
    "a.b/c d+@-_": "a.b/c d+@-_",
    'say "hi"': "say_hi",
    "say\n'hi'": "say_hi_2",
    "say_hi_3": "say_hi_3",
    "": "tool",
    " ": "tool_2",
    "<tool_call>": "tool_call",
    "</tool_call>\n<|im_end|>": "tool_call_im_end",
    "tool\\u0041": "tool_u0041",
    "\ud83d\ufffd": "tool_3",
    "x" * 300: "x" * 100,
}


def test_names_that_a_call_cannot_hold_get_others() -> None:
    use = ToolUse(tuple(Tool(name) for name in (*NAMES, *NAMES)))
    assert use.model_names == NAMES
    many = ToolUse(tuple(Tool("!" * number) for number in range(1, MAX_TOOLS + 1)))
    assert len(set(many.model_names.values())) == MAX_TOOLS


def body_of(path: str, names: list[str], chosen: str | None = None, **fields: Any) -> dict[str, Any]:
    """A body with tools and the choice of one, or of any of them."""
    named: Any = {"type": "function", "name": chosen}
    limit = "max_output_tokens" if path == RESPONSES else "max_tokens"
    prompt = {"input": "w5"} if path == RESPONSES else {"messages": user("w5")}
    body = {"model": "golden", limit: 120, "seed": 1, "temperature": 1, **prompt}
    if path == MESSAGES:
        tools: list[Any] = [{"name": name, "input_schema": SCHEMA} for name in names]
        choice: Any = {"type": "any"} if chosen is None else {"type": "tool", "name": chosen}
    elif path == RESPONSES:
        tools = [{"type": "function", "name": name, "parameters": SCHEMA} for name in names]
        choice = "required" if chosen is None else named
    else:
        tools = [{"type": "function", "function": {"name": name, "parameters": SCHEMA}} for name in names]
        choice = "required" if chosen is None else {"type": "function", "function": {"name": chosen}}
    return {**body, "tools": tools, "tool_choice": choice} | fields


def calls_of(path: str, answer: dict[str, Any]) -> list[tuple[str, Any]]:
    if path == MESSAGES:
        return [(block["name"], block["input"]) for block in answer["content"] if block["type"] == "tool_use"]
    if path == RESPONSES:
        items = [item for item in answer["output"] if item["type"] == "function_call"]
    else:
        items = [call["function"] for call in answer["choices"][0]["message"]["tool_calls"]]
    return [(item["name"], json.loads(item["arguments"])) for item in items]


def streamed(path: str, events: list[Any]) -> dict[str, Any]:
    if path == MESSAGES:
        return whole_message(events)
    return dict(events[-1]["response"]) if path == RESPONSES else {"choices": [{"message": chat_message(events)}]}


each_path = pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])


@each_path
async def test_a_call_has_the_clients_name(caller, path):
    names = [name for name in NAMES if "\ud83d" not in name]
    async with over(caller) as http:
        for chosen in names[1::3]:
            body = body_of(path, ["say_hi", chosen, "tool"], chosen)
            answer = await ask(http, path, body)
            [(name, arguments), *_] = calls_of(path, answer)
            assert name == chosen
            jsonschema.validate(arguments, SCHEMA)
            assert calls_of(path, streamed(path, await stream_events(http, path, body))) == calls_of(path, answer)


async def test_a_history_has_the_models_names(caller):
    """The prompt is that of a client that uses the model's names itself."""
    counts = []
    for name in ('say "hi"', "say_hi"):
        call = {"id": "a", "type": "function", "function": {"name": name, "arguments": "{}"}}
        turns = [{"role": "assistant", "tool_calls": [call]}, {"role": "tool", "tool_call_id": "a", "content": "w6"}]
        body = body_of(CHAT, ["add", name], messages=[*user("w5"), *turns], mode="static", max_tokens=40)
        async with over(caller) as http:
            answer = await ask(http, CHAT, body)
        counts.append((answer["usage"]["prompt_tokens"], answer["choices"][0]["token_ids"]))
    assert counts[0] == counts[1]


@each_path
@pytest.mark.parametrize(
    "schema", ["no JSON", [1], 7, True, '{"type": "array"}', {"type": "strin"}, {"type": ["null"]}]
)
async def test_a_wrong_schema_leaves_the_others(caller, path, schema):
    """Its own tool gets any arguments, and the answer names the field."""
    field = {CHAT: "function.parameters", MESSAGES: "input_schema", RESPONSES: "parameters"}[path]
    body = body_of(path, ["bad", "good"])
    bad = body["tools"][0]
    (bad["function"] if path == CHAT else bad)[field.rpartition(".")[2]] = schema
    async with over(caller) as http:
        response = await http.post(path, json=body)
        assert response.status_code == 200, response.text
        typed = isinstance(schema, dict) or schema == '{"type": "array"}'
        assert response.headers["x-ignored-fields"] == f"tools.{field}" + (".type" if typed else "")
        for name, arguments in calls_of(path, response.json()):
            if name == "good":
                jsonschema.validate(arguments, SCHEMA)
        response = await http.post(path, json=body, headers={"x-strict-fields": "true"})
        assert response.status_code == 400


@each_path
async def test_a_tool_of_another_type_leaves_the_others(caller, path):
    tools = [{"type": kind, "name": "a", kind: {}} for kind in ("web_search", "mcp", "computer_use_preview")]
    body = body_of(path, ["good"])
    async with over(caller) as http:
        response = await http.post(path, json=body | {"tools": [*tools, *body["tools"]]})
        assert response.headers["x-ignored-fields"] == ", ".join(f"tools.{tool['type']}" for tool in tools)
        assert {name for name, _ in calls_of(path, response.json())} == {"good"}


@pytest.mark.parametrize("path", [CHAT, RESPONSES])
async def test_a_choice_among_tools_leaves_out_other_types(caller, path):
    body = body_of(path, ["good", "other"])
    good = {"name": "good"} if path == RESPONSES else {"function": {"name": "good"}}
    among = [{"type": "mcp", "server_label": "a"}, {"type": "function"} | good]
    wanted: dict[str, Any] = {"mode": "required", "tools": among}
    choice = {"type": "allowed_tools"} | (wanted if path == RESPONSES else {"allowed_tools": wanted})
    async with over(caller) as http:
        answer = await ask(http, path, body | {"tool_choice": choice})
        assert {name for name, _ in calls_of(path, answer)} == {"good"}
        among.pop()
        assert (await refused(http, path, body | {"tool_choice": choice}))["param"] == "tool_choice"
