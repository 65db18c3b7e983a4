"""POST /v1/messages: answers and their ends, what agents send, calls of tools, and thinking."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import jsonschema
import pytest

from service.api.anthropic.protocol import MessageAnswer
from service.replica.replica import Replica
from tests.gateway.apis import (
    CHAT,
    COUNT,
    MESSAGES,
    ask,
    chat,
    essence,
    message,
    refused,
    stream_events,
    user,
    whole_message,
)
from tests.gateway.helpers import assert_shape, over

SYSTEM = [{"type": "text", "text": "w9", "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": "w8"}]


async def test_the_answer_is_that_of_a_chat(http):
    """Same prompt, same tokens as OpenAI's route; knobs and statistics are there, too."""
    fields = {"max_tokens": 30, "mode": "speculative", "mrp_steps": 2, "ignore_eos": True}
    answer = await ask(http, MESSAGES, message(system="w9", return_trace=True, **fields))
    assert_shape(MessageAnswer, answer)
    openai = await ask(http, CHAT, chat(messages=[{"role": "system", "content": "w9"}, *user()], **fields))
    assert answer["content"] == [{"type": "text", "text": openai["choices"][0]["message"]["content"]}]
    assert answer["stats"]["knobs"]["mrp_steps"] == 2
    assert answer["usage"]["output_tokens"] == openai["usage"]["completion_tokens"] == 30
    assert answer["stop_reason"] == "max_tokens"
    assert essence(answer["usage"])["prompt"] == openai["usage"]["prompt_tokens"]


async def test_a_stop_sequence_is_named(http):
    body = message(max_tokens=30, mode="static", seed=1, ignore_eos=True)
    whole = (await ask(http, MESSAGES, body))["content"][0]["text"]
    stop = whole.split()[12]
    answer = await ask(http, MESSAGES, body | {"stop_sequences": ["never", stop]})
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("stop_sequence", stop)
    assert whole.startswith(answer["content"][0]["text"])
    assert stop not in answer["content"][0]["text"].split()
    events = await stream_events(http, MESSAGES, body | {"stop_sequences": ["never", stop]})
    assert essence(whole_message(events)) == essence(answer)


async def test_an_agents_max_tokens_is_clipped_to_the_context(http):
    """Agents ask for 32,000 tokens whatever the model's length is."""
    body = message(" ".join(["w5"] * 2000), max_tokens=32000, mode="static", ignore_eos=True)
    answer = await ask(http, MESSAGES, body)
    assert answer["stop_reason"] == "model_context_window_exceeded"
    assert sum(answer["usage"].values()) == 2048


async def test_marks_labels_betas_and_thoughts_of_agents_change_nothing(http):
    text = {"type": "text", "text": "w5", "cache_control": {"type": "ephemeral", "ttl": "1h"}}
    thought = {"type": "thinking", "thinking": "w1", "signature": "x"}
    turns = [
        {"role": "user", "content": [text, {"type": "text", "text": "w6"}]},
        {"role": "assistant", "content": [thought, {"type": "text", "text": "w7"}]},
        {"role": "user", "content": "w8"},
    ]
    plain = [{"role": "user", "content": "w5\nw6"}, {"role": "assistant", "content": "w7"}, turns[2]]
    hints = {
        "metadata": {"user_id": "user_1"},
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "service_tier": "auto",
        "context_management": {"edits": []},
        "output_config": {"effort": "high"},
        "tools": [],
    }
    agents = message(messages=turns, system=SYSTEM, **hints, temperature=1, seed=3, mode="static")
    body = message(messages=plain, system="w9\nw8", temperature=1, seed=3, mode="static")
    answer = essence(await ask(http, MESSAGES, body))
    assert essence(await ask(http, MESSAGES, agents)) == answer
    headers = {"anthropic-version": "2023-06-01", "anthropic-beta": "new-2026-01-01", "x-api-key": "none"}
    response = await http.post(f"{MESSAGES}?beta=true", json=agents | {"quite_new": {"a": 1}}, headers=headers)
    assert essence(response.json()) == answer
    assert response.headers["request-id"] == response.headers["x-request-id"]
    assert response.headers["x-ignored-fields"] == "quite_new"


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


def with_tools(**fields: Any) -> dict[str, Any]:
    return message("add 1", max_tokens=120, tools=TOOLS, mode="static", seed=2) | fields


@pytest.mark.parametrize("choice", [ANY, {"type": "tool", "name": "none"}])
async def test_a_required_call_fits_its_schema(agent, choice):
    answer = await ask(agent, MESSAGES, with_tools(tool_choice=choice))
    assert_shape(MessageAnswer, answer)
    call = answer["content"][-1]
    assert (call["type"], answer["stop_reason"]) == ("tool_use", "tool_use")
    [tool] = [tool for tool in TOOLS if tool["name"] == call["name"]]
    assert call["name"] == choice.get("name", call["name"])
    jsonschema.validate(call["input"], tool["input_schema"])
    assert essence(whole_message(await stream_events(agent, MESSAGES, with_tools(tool_choice=choice)))) == essence(
        answer
    )


async def test_only_a_strict_tool_is_refused_for_an_unusual_schema(agent):
    schema = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True, "maxItems": 1}}}
    tools = [*TOOLS, {"name": "find", "input_schema": schema}]
    assert await ask(agent, MESSAGES, with_tools(tools=tools, tool_choice={"type": "tool", "name": "find"}))
    tools[-1]["strict"] = True
    error = await refused(agent, MESSAGES, with_tools(tools=tools))
    assert error["param"] == "tools.2.input_schema"
    assert "properties.a.uniqueItems is not supported in a strict schema" in error["message"]


async def test_a_conversation_goes_on_after_a_call(agent):
    """The client's own blocks come back with the result; the prompt then has more tokens."""
    first = await ask(agent, MESSAGES, with_tools(tool_choice=ANY))
    result = {
        "type": "tool_result",
        "tool_use_id": first["content"][-1]["id"],
        "content": [{"type": "text", "text": "2"}],
    }
    turns = [
        *user("add 1"),
        {"role": "assistant", "content": first["content"]},
        {"role": "user", "content": [result | {"is_error": False}, {"type": "text", "text": "And?"}]},
    ]
    again = await ask(agent, MESSAGES, with_tools(messages=turns, max_tokens=8))
    counts = [
        (await ask(agent, COUNT, {"model": "golden", "messages": messages} | tools))["input_tokens"]
        for messages, tools in ((turns, {"tools": TOOLS}), (turns[:1], {"tools": TOOLS}), (turns[:1], {}))
    ]
    assert counts[0] == essence(again["usage"])["prompt"]
    assert counts[0] > counts[1] > counts[2]
    lost = [*turns[:2], {"role": "user", "content": [result | {"tool_use_id": "x"}]}]
    error = await refused(agent, MESSAGES, with_tools(messages=lost))
    assert (error["param"], "no call before" in error["message"]) == ("messages.2.content.0.tool_use_id", True)
    wrong = user([{"type": "tool_use", "id": "a", "name": "b", "input": {}}])
    assert "allowed is assistant" in (await refused(agent, MESSAGES, with_tools(messages=wrong)))["message"]


@pytest.mark.parametrize("wanted", [None, "enabled", "disabled"])
async def test_thinking_is_a_block_of_its_own_if_it_is_wanted(agent, wanted):
    """Otherwise the prompt tells the model not to think."""
    thinking = {"type": wanted, "budget_tokens": 1024} if wanted else None
    body = message("w5", max_tokens=24, mode="static", seed=1, thinking=thinking)
    count = await ask(agent, COUNT, {name: body[name] for name in ("model", "messages", "thinking") if name in body})
    plain = await ask(agent, COUNT, message("w5", max_tokens=None))
    assert (count["input_tokens"] == plain["input_tokens"]) == (wanted != "enabled")
    events = await stream_events(agent, MESSAGES, body)
    assert essence(await ask(agent, MESSAGES, body)) == essence(whole_message(events))
