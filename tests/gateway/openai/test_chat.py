"""POST /v1/chat/completions: messages, their template, frames."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.gateway.openai.helpers import CHAT, ask, chat, choices, frames, refused, without_cached


async def test_the_whole_shape_and_the_same_answer_as_generate(http: httpx.AsyncClient) -> None:
    body = chat("w5 w6", mode="static")  # by default the number of forwards depends on measured times
    answer = await ask(http, CHAT, body)
    same = {"messages": body["messages"], "max_new_tokens": 16, "mode": "static"}
    generated = await ask(http, "/generate", same)
    (choice,) = answer["choices"]
    assert answer["id"].startswith("chatcmpl-")
    assert answer["object"] == "chat.completion"
    assert choice["message"] == {"role": "assistant", "content": generated["text"], "refusal": None}
    assert choice["finish_reason"] == generated["finish_reason"]
    assert without_cached(answer["usage"]) == generated["usage"]
    assert choice["stats"]["forwards"]["denoise"] == generated["stats"]["forwards"]["denoise"]


async def test_frames_begin_with_the_role_and_end_with_the_reason(http: httpx.AsyncClient) -> None:
    body = chat(n=2, temperature=1.0, seed=4, max_tokens=20)
    whole = await ask(http, CHAT, body)
    events = await frames(http, CHAT, body)
    assert {event["object"] for event in events} == {"chat.completion.chunk"}
    for choice in whole["choices"]:
        first, *parts, last = choices(events, choice["index"])
        assert first["delta"] == {"role": "assistant", "content": ""}
        assert "".join(part["delta"]["content"] for part in parts) == choice["message"]["content"]
        assert last["delta"] == {}
        assert (last["finish_reason"], last["stats"]["seed"]) == (choice["finish_reason"], 4 + choice["index"])


async def test_an_empty_answer_is_a_whole_stream(http: httpx.AsyncClient) -> None:
    first = (await ask(http, CHAT, chat(mode="static")))["choices"][0]["token_ids"][0]
    events = await frames(http, CHAT, chat(mode="static", stop_token_ids=[first]))
    opening, *pieces, closing = choices(events)
    assert opening["delta"]["role"] == "assistant"
    assert "".join(piece["delta"]["content"] for piece in pieces) == ""
    assert closing["finish_reason"] == "stop"


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "developer", "content": "w5"}],
        [{"role": "system", "content": [{"type": "text", "text": "w"}, {"type": "text", "text": "5"}]}],
        [{"role": "system", "content": "w5", "refusal": None, "tool_calls": [], "audio": None}],
    ],
)
async def test_messages_that_mean_the_same(http: httpx.AsyncClient, messages: list[dict[str, Any]]) -> None:
    plain = await ask(http, CHAT, chat() | {"messages": [{"role": "system", "content": "w5"}]})
    other = await ask(http, CHAT, chat() | {"messages": messages})
    assert without_cached(other["usage"]) == without_cached(plain["usage"])
    assert other["choices"][0]["message"] == plain["choices"][0]["message"]


async def test_control_tokens_in_messages_stay_text(http: httpx.AsyncClient) -> None:
    literal = await ask(http, CHAT, chat("w5 <|MASK|> w6"))
    unknown = await ask(http, CHAT, chat("w5 nothing-known w6"))
    assert literal["choices"][0]["token_ids"] == unknown["choices"][0]["token_ids"]


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
async def test_either_name_limits_the_tokens(http: httpx.AsyncClient, name: str) -> None:
    body = {"model": "golden", "messages": chat()["messages"], "ignore_eos": True, name: 3}
    assert (await ask(http, CHAT, body))["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ({"role": "tool", "content": "w5"}, "tool_call_id is missing"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}, "image_url, and this model reads text"),
        ({"role": "user", "content": [{"type": "text", "text": 1}]}, "a text or a list of parts is expected"),
        ({"role": "user", "content": 1}, "messages.0.content is 1"),
        ("w5", 'messages.0 is "w5"'),
    ],
)
async def test_messages_that_are_refused(http: httpx.AsyncClient, message: Any, said: str) -> None:
    error = await refused(http, CHAT, chat() | {"messages": [message]})
    assert said in error["message"]
    assert error["param"].startswith("messages.0")
