"""POST /v1/chat/completions: messages, their template, frames."""

import pytest

from tests.gateway.apis import CHAT, GENERATE, ask, chat, choices, stream_events, without_cached


async def test_a_whole_answer_is_that_of_generate(http):
    body = chat("w5 w6", mode="static")  # by default the number of forwards depends on measured times
    answer = await ask(http, CHAT, body)
    same = {"messages": body["messages"], "max_new_tokens": 16, "mode": "static"}
    generated = await ask(http, GENERATE, same)
    (choice,) = answer["choices"]
    assert answer["id"].startswith("chatcmpl-")
    assert answer["object"] == "chat.completion"
    assert choice["message"] == {"role": "assistant", "content": generated["text"], "refusal": None}
    assert choice["finish_reason"] == generated["finish_reason"]
    assert without_cached(answer["usage"]) == generated["usage"]
    assert choice["stats"]["forwards"]["denoise"] == generated["stats"]["forwards"]["denoise"]


async def test_events_begin_with_the_role_and_end_with_the_reason(http):
    body = chat(n=2, temperature=1.0, seed=4, max_tokens=20)
    whole = await ask(http, CHAT, body)
    events = await stream_events(http, CHAT, body)
    assert {event["object"] for event in events} == {"chat.completion.chunk"}
    for choice in whole["choices"]:
        first, *parts, last = choices(events, choice["index"])
        assert first["delta"] == {"role": "assistant", "content": ""}
        assert "".join(part["delta"]["content"] for part in parts) == choice["message"]["content"]
        assert last["delta"] == {}
        assert (last["finish_reason"], last["stats"]["seed"]) == (choice["finish_reason"], 4 + choice["index"])


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "developer", "content": "w5"}],
        [{"role": "system", "content": [{"type": "text", "text": "w"}, {"type": "text", "text": "5"}]}],
        [{"role": "system", "content": "w5", "refusal": None, "tool_calls": [], "audio": None}],
    ],
)
async def test_messages_that_mean_the_same(http, messages):
    plain = await ask(http, CHAT, chat() | {"messages": [{"role": "system", "content": "w5"}]})
    other = await ask(http, CHAT, chat() | {"messages": messages})
    assert without_cached(other["usage"]) == without_cached(plain["usage"])
    assert other["choices"][0]["message"] == plain["choices"][0]["message"]


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
async def test_either_name_limits_the_tokens(http, name):
    body = {"model": "golden", "messages": chat()["messages"], "ignore_eos": True, name: 3}
    assert (await ask(http, CHAT, body))["usage"]["completion_tokens"] == 3
