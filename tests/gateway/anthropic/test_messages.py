"""POST /v1/messages: whole and streamed answers, their ends, their counts, and what is refused."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from service.api.anthropic.protocol import MessageAnswer, TokenCount
from service.api.errors import AnthropicErrorAnswer
from service.engine.request import Stats
from service.errors import DeadlineExceeded, NotReady, QueueFull
from service.messages.wire import Chunk, Ending, Failure
from service.replica.replica import Replica
from tests.gateway.anthropic.helpers import COUNT, MESSAGES, ask, essence, events, events_of, message, refused, whole_of
from tests.gateway.doubles import Scripted
from tests.gateway.helpers import assert_shape, over
from tests.gateway.openai.helpers import CHAT, chat

SYSTEM = [{"type": "text", "text": "w9", "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": "w8"}]


async def test_the_answer_is_that_of_a_chat(http: httpx.AsyncClient) -> None:
    """Same prompt, same tokens as OpenAI's route; knobs and statistics are there, too."""
    body = message(system="w9", max_tokens=30, mode="speculative", mrp_steps=2, ignore_eos=True, return_trace=True)
    answer = await ask(http, body)
    assert_shape(MessageAnswer, answer)
    messages = [{"role": "system", "content": "w9"}, *body["messages"]]
    theirs = await ask(
        http, chat(messages=messages, max_tokens=30, mode="speculative", mrp_steps=2, ignore_eos=True), CHAT
    )
    assert answer["content"] == [{"type": "text", "text": theirs["choices"][0]["message"]["content"]}]
    assert answer["stats"]["knobs"]["mrp_steps"] == 2
    assert answer["usage"]["output_tokens"] == theirs["usage"]["completion_tokens"] == 30
    assert answer["stop_reason"] == "max_tokens"
    assert essence(answer["usage"])["prompt"] == theirs["usage"]["prompt_tokens"]


@pytest.mark.parametrize(
    "fields",
    [
        {"mode": "static", "seed": 1},
        {"mode": "speculative", "mrp_steps": 2, "temperature": 0.9, "seed": 5, "return_trace": True},
        {"mode": "static", "choice": ["w7 w8", "w9"], "seed": 1},
    ],
)
async def test_the_events_of_a_stream_make_the_whole_message(http: httpx.AsyncClient, fields: dict[str, Any]) -> None:
    body = message(max_tokens=40, **fields)
    if "choice" in fields:
        error = await refused(http, body)  # the golden words tokenizer does not say which bytes its tokens are
        assert "which bytes" in error["message"]
        return
    whole = await ask(http, body)
    found = await events(http, body)
    assert essence(whole_of(found)) == essence(whole)
    usage = found[0]["message"]["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == essence(whole["usage"])["prompt"]
    assert len([event for event in found if event["type"] == "content_block_delta"]) > 1


async def test_a_stop_sequence_is_named(http: httpx.AsyncClient) -> None:
    whole = (await ask(http, message(max_tokens=30, mode="static", ignore_eos=True)))["content"][0]["text"]
    stop = whole.split()[12]
    body = message(max_tokens=30, mode="static", seed=1, ignore_eos=True, stop_sequences=["never", stop])
    answer = await ask(http, body)
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("stop_sequence", stop)
    assert whole.startswith(answer["content"][0]["text"])
    assert stop not in answer["content"][0]["text"].split()
    assert essence(whole_of(await events(http, body))) == essence(answer)


async def test_an_agents_max_tokens_is_what_fits(http: httpx.AsyncClient) -> None:
    """Agents ask for 32,000 tokens whatever the model's length is."""
    long = " ".join(["w5"] * 2000)
    answer = await ask(http, message(long, max_tokens=32000, mode="static", ignore_eos=True))
    assert answer["stop_reason"] == "model_context_window_exceeded"
    assert sum(answer["usage"].values()) == 2048
    error = await refused(http, message(" ".join(["w5"] * 2100), max_tokens=32000))
    assert error["type"] == "invalid_request_error"
    assert error["message"].startswith("prompt is too long: ")
    assert error["message"].endswith("the prompt is too long: it has 2103 tokens, and an answer has at least one.")
    assert error["param"] == "messages"


async def test_what_coding_agents_send_is_taken(http: httpx.AsyncClient) -> None:
    """Marks for a cache, blocks, labels, betas and thoughts change nothing about the answer."""
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
    theirs = await ask(http, message(messages=plain, system="w9\nw8", temperature=1, seed=3, mode="static"))
    assert essence(await ask(http, agents)) == essence(theirs)
    headers = {"anthropic-version": "2023-06-01", "anthropic-beta": "new-2026-01-01", "x-api-key": "none"}
    response = await http.post(f"{MESSAGES}?beta=true", json=agents | {"quite_new": {"a": 1}}, headers=headers)
    assert essence(response.json()) == essence(theirs)
    assert response.headers["request-id"] == response.headers["x-request-id"]
    assert response.headers["x-ignored-fields"] == "quite_new"


@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
        ({"max_tokens": None}, "max_tokens", "max_tokens is missing"),
        ({"max_tokens": 0}, "max_tokens", "max_tokens is 0"),
        ({"temperature": 1.1}, "temperature", "temperature is 1.1, allowed are 0 to 1"),
        ({"stop": "w1"}, "stop", "use 'stop_sequences'"),
        ({"tool_choice": {"type": "any"}}, "tool_choice", "there are no tools"),
        ({"tool_choice": {"type": "some"}}, "tool_choice", "expected tags"),
        ({"tools": [{"name": "add", "input_schema": {}}]}, "tools", "tools are given, and"),
        ({"mcp_servers": [{}]}, "mcp_servers", "not served"),
        ({"messages": []}, "messages", "messages is []"),
        ({"messages": [{"role": "tool", "content": "w5"}]}, "messages.0.role", "role"),
        ({"messages": [{"role": "assistant", "content": "w5"}]}, "messages.0.role", "end with a user's message"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
            "messages.0.content.0",
            "of the type image, and this model reads text only",
        ),
        ({"messages": [{"role": "user", "content": [{"text": "w5"}]}]}, "messages.0.content.0", "extract tag"),
        ({"output_config": {"format": {"type": "xml"}}}, "output_config.format.type", "json_schema"),
        ({"mode": "static", "threshold": 0.5}, "threshold", "mode 'static' does not use threshold"),
        ({"stop_sequences": [1]}, "stop_sequences.0", "stop_sequences"),
    ],
)
async def test_a_refusal_names_the_field(
    http: httpx.AsyncClient, fields: dict[str, Any], param: str, said: str
) -> None:
    error = await refused(http, message(**fields))
    assert (error["type"], error["param"]) == ("invalid_request_error", param)
    assert said in error["message"]


async def test_other_errors_have_anthropics_types(http: httpx.AsyncClient) -> None:
    error = await refused(http, message(model="claude-opus-4"), 404)
    assert (error["type"], error["code"]) == ("not_found_error", "unknown_model")
    assert "served is 'golden'" in error["message"]
    response = await http.get(MESSAGES)
    assert (response.status_code, response.json()["error"]["type"]) == (405, "invalid_request_error")


async def test_the_key_is_anthropics_or_a_bearers(generator: Replica) -> None:
    async with over(generator, api_keys=("first",)) as http:
        for headers in ({"x-api-key": "first"}, {"Authorization": "Bearer first"}):
            assert (await http.post(MESSAGES, json=message(), headers=headers)).status_code == 200
        for path in (MESSAGES, COUNT):
            error = await refused(http, message(), 401, path)
            assert (error["type"], error["code"]) == ("authentication_error", "unauthorized")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (QueueFull("full", retry_after=2.5), "rate_limit_error"),
        (NotReady("drains", retry_after=5.0), "overloaded_error"),
        (DeadlineExceeded("too late"), "timeout_error"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_an_error_before_the_first_block_has_its_status(error: Any, kind: str, stream: bool) -> None:
    backend = Scripted(Failure(error))
    async with over(backend) as http:
        response = await http.post(MESSAGES, json=message(stream=stream))
    assert_shape(AnthropicErrorAnswer, response.json())
    assert (response.status_code, response.json()["error"]["type"]) == (error.status, kind)
    assert ("retry-after" in response.headers) == (error.retry_after is not None)
    assert backend.live == 0 or not stream


async def test_an_error_in_the_midst_is_an_event() -> None:
    chunk = Chunk(0, "a", (1,), Stats(), prompt_tokens=3)
    async with over(Scripted(chunk, ZeroDivisionError("secret"))) as http:
        response = await http.post(MESSAGES, json=message(stream=True))
    *before, last = events_of(response.text)
    assert [event["type"] for event in before] == [
        "message_start", "ping", "content_block_start", "content_block_delta",
    ]  # fmt: skip
    assert (last["error"]["type"], last["error"]["code"]) == ("api_error", "internal_error")
    assert "secret" not in response.text


async def test_a_time_out_and_an_answer_of_nothing() -> None:
    chunk = Chunk(0, "a", (1,), Stats(), prompt_tokens=3)
    async with over(Scripted(chunk, Ending("timeout", 3, 1, Stats()))) as http:
        answer = await ask(http, message())
        assert (answer["stop_reason"], answer["stats"]["finish_reason"]) == ("max_tokens", "timeout")
    async with over(Scripted(Ending("stop", 3, 0, Stats()))) as http:
        answer = await ask(http, message())
        assert (answer["content"], answer["stop_reason"]) == ([], "end_turn")
        found = await events(http, message())
        assert [event["type"] for event in found] == ["message_start", "message_delta", "message_stop"]


async def test_tokens_are_counted_as_an_answer_counts_them(http: httpx.AsyncClient) -> None:
    body = message("w5 w6 w7", system=SYSTEM)
    count = await ask(http, {name: body[name] for name in ("model", "messages", "system")}, COUNT)
    assert_shape(TokenCount, count)
    assert count["input_tokens"] == essence((await ask(http, body))["usage"])["prompt"]
    assert await ask(http, body | {"thinking": {"type": "adaptive"}, "tools": [], "quite_new": 1}, COUNT) == count
    error = await refused(http, message(model="other"), 404, COUNT)
    assert error["type"] == "not_found_error"
    assert (await refused(http, message(messages=[]), 400, COUNT))["param"] == "messages"
    assert (await refused(http, message(priority=10), 400, COUNT))["param"] == "priority"
