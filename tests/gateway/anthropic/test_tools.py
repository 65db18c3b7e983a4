"""Calls of tools and thinking in Anthropic's blocks, whole and streamed, over a checkpoint that chats as Qwen3 does."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import jsonschema
import pytest

from service.api.anthropic.builder import ContentBuilder, blocks_of
from service.api.anthropic.protocol import MessageAnswer
from service.replica.replica import Replica
from service.text.tools import AnswerFormat
from tests.gateway.anthropic.helpers import COUNT, ask, essence, events, message, refused, whole_of
from tests.gateway.doubles import Dying
from tests.gateway.helpers import assert_shape, over

NUMBER = {"type": "object", "properties": {"a": {"type": "integer", "maximum": 9}}, "required": ["a"]}
NUMBER |= {"additionalProperties": False}
TOOLS = [
    {"name": "add", "description": "Adds.", "input_schema": NUMBER, "cache_control": {"type": "ephemeral"}},
    {"name": "none", "input_schema": {"type": "object", "properties": {}, "additionalProperties": False}},
]
ANY = {"type": "any", "disable_parallel_tool_use": True}


@pytest.fixture
async def agent(chatting: Replica) -> AsyncIterator[httpx.AsyncClient]:
    async with over(chatting) as http:
        yield http


def asked(**fields: Any) -> dict[str, Any]:
    return message("add 1", max_tokens=120, tools=TOOLS, mode="static", seed=2) | fields


def without_ids(value: dict[str, Any]) -> Any:
    """The blocks of a message; ids of calls are drawn anew for each answer."""
    return [{name: one for name, one in block.items() if name != "id"} for block in value["content"]]


@pytest.mark.parametrize("choice", [ANY, {"type": "tool", "name": "none"}])
async def test_a_call_that_must_come_fits_its_schema(agent: httpx.AsyncClient, choice: dict[str, Any]) -> None:
    answer = await ask(agent, asked(tool_choice=choice))
    assert_shape(MessageAnswer, answer)
    call = answer["content"][-1]
    assert (call["type"], answer["stop_reason"]) == ("tool_use", "tool_use")
    [tool] = [tool for tool in TOOLS if tool["name"] == call["name"]]
    assert call["name"] == choice.get("name", call["name"])
    jsonschema.validate(call["input"], tool["input_schema"])
    whole = whole_of(await events(agent, asked(tool_choice=choice)))
    assert without_ids(whole) == without_ids(answer)
    assert whole["stop_reason"] == "tool_use"


async def test_only_a_strict_tool_is_refused_for_an_unusual_schema(agent: httpx.AsyncClient) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True, "maxItems": 1}}}
    tools = [*TOOLS, {"name": "find", "input_schema": schema}]
    assert await ask(agent, asked(tools=tools, tool_choice={"type": "tool", "name": "find"}))
    tools[-1]["strict"] = True
    error = await refused(agent, asked(tools=tools))
    assert error["param"] == "tools.2.input_schema"
    assert "properties.a.uniqueItems is not supported in a strict schema" in error["message"]


async def test_a_conversation_goes_on_after_a_call(agent: httpx.AsyncClient) -> None:
    """The client's own blocks come back with the result; the prompt then has more tokens."""
    first = await ask(agent, asked(tool_choice=ANY))
    call = first["content"][-1]
    answered = {"type": "tool_result", "tool_use_id": call["id"], "content": [{"type": "text", "text": "2"}]}
    turns = [
        *asked()["messages"],
        {"role": "assistant", "content": first["content"]},
        {"role": "user", "content": [answered | {"is_error": False}, {"type": "text", "text": "And?"}]},
    ]
    again = await ask(agent, asked(messages=turns, max_tokens=8))
    counts = [await ask(agent, {"model": "golden", "messages": m, "tools": TOOLS}, COUNT) for m in (turns, turns[:1])]
    assert counts[0]["input_tokens"] == essence(again["usage"])["prompt"] > counts[1]["input_tokens"]
    bare = await ask(agent, {"model": "golden", "messages": turns[:1]}, COUNT)
    assert bare["input_tokens"] < counts[1]["input_tokens"]
    lost = [*turns[:2], {"role": "user", "content": [answered | {"tool_use_id": "x"}]}]
    error = await refused(agent, asked(messages=lost))
    assert (error["param"], "no call before" in error["message"]) == ("messages.2.content.0.tool_use_id", True)
    wrong = [{"role": "user", "content": [{"type": "tool_use", "id": "a", "name": "b", "input": {}}]}]
    assert "allowed is assistant" in (await refused(agent, asked(messages=wrong)))["message"]


@pytest.mark.parametrize("wanted", [None, "enabled", "disabled"])
async def test_thinking_is_a_block_of_its_own_if_it_is_asked_for(agent: httpx.AsyncClient, wanted: str | None) -> None:
    """Not asked for, the prompt tells the model not to think."""
    thinking = {"type": wanted, "budget_tokens": 1024}
    body = message("w5", max_tokens=24, mode="static", seed=1) | ({"thinking": thinking} if wanted else {})
    count = await ask(agent, {name: body[name] for name in ("model", "messages", "thinking") if name in body}, COUNT)
    plain = await ask(agent, message("w5", max_tokens=None), COUNT)
    assert (count["input_tokens"] == plain["input_tokens"]) == (wanted != "enabled")
    assert essence(await ask(agent, body)) == essence(whole_of(await events(agent, body)))


TOLD = '<think>\nhm\n</think>\n\nLet me.<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
MADE = [
    {"type": "thinking", "thinking": "hm", "signature": ""},
    {"type": "text", "text": "Let me."},
    {"type": "tool_use", "name": "add", "input": {"a": 1}},
]


@pytest.mark.parametrize("width", [1, 3, 7, len(TOLD)])
def test_blocks_are_the_same_for_any_cut(width: int) -> None:
    blocks = ContentBuilder(AnswerFormat("qwen3", "may"))
    pieces = [TOLD[at : at + width] for at in range(0, len(TOLD), width)]
    found = [*(event for piece in pieces for event in blocks.push(piece)), *blocks.finish()]
    assert without_ids({"content": blocks_of(found)}) == MADE
    assert blocks.called
    starts = [event["index"] for event in found if event["type"] == "content_block_start"]
    stops = [event["index"] for event in found if event["type"] == "content_block_stop"]
    assert starts == stops == [0, 1, 2]


def test_a_call_that_was_cut_has_what_was_complete() -> None:
    for length in range(len(TOLD)):
        blocks = ContentBuilder(AnswerFormat("qwen3", "may"))
        found = blocks_of([*blocks.push(TOLD[:length]), *blocks.finish()])
        assert all(isinstance(block.get("input", {}), dict) for block in found)
        assert not blocks.called


async def test_a_stream_with_a_call_that_another_replica_continues(chatting: Replica) -> None:
    body = asked(tool_choice={"type": "tool", "name": "add"})
    async with over(chatting) as http:
        undisturbed = without_ids(whole_of(await events(http, body)))
    for after in (1, 2, 4):
        async with over(Dying(chatting, chatting, after)) as http:
            assert without_ids(whole_of(await events(http, body))) == undisturbed
