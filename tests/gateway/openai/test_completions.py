"""POST /v1/completions against POST /generate and the golden decodes."""

import pytest

from tests.gateway.apis import CHAT, COMPLETIONS, PROMPT, ask, chat, choices, completion, stream_events, without_cached


async def test_the_whole_shape(http):
    answer = await ask(http, COMPLETIONS, completion(seed=5))
    (choice,) = answer["choices"]
    stats = choice["stats"]
    assert answer["id"].startswith("cmpl-")
    assert (answer["object"], answer["model"]) == ("text_completion", "golden")
    assert isinstance(answer["created"], int)
    assert choice["text"] == " ".join(f"w{token}" for token in choice["token_ids"])
    assert (choice["index"], choice["finish_reason"], choice["logprobs"]) == (0, "stop", None)
    assert without_cached(answer["usage"]) == {"prompt_tokens": 8, "completion_tokens": 15, "total_tokens": 23}
    assert answer["usage"]["prompt_tokens_details"] == {"cached_tokens": stats["cached_tokens"]}
    assert (stats["seed"], stats["mode"], stats["finish_reason"]) == (5, "speculative", "stop")
    assert stats["tokens_per_forward"] > 0
    assert "trace" not in choice


@pytest.mark.parametrize(
    "fields", [{}, {"stop": "w417"}, {"n": 2, "temperature": 0.9, "max_tokens": 30}, {"prompt": "w5 w6", "echo": True}]
)
async def test_events_add_up_to_the_whole_answer(http, fields):
    body = completion(seed=3, ignore_eos=True, **fields)
    whole = await ask(http, COMPLETIONS, body)
    events = await stream_events(http, COMPLETIONS, body)
    assert {event["object"] for event in events} == {"text_completion"}
    assert len({event["id"] for event in events}) == 1
    assert all("usage" not in event for event in events)
    for choice in whole["choices"]:
        parts = choices(events, choice["index"])
        assert "".join(part["text"] for part in parts) == choice["text"]
        assert [token for part in parts for token in part.get("token_ids", [])] == choice["token_ids"]
        assert [part["finish_reason"] for part in parts] == [None] * (len(parts) - 1) + [choice["finish_reason"]]
        assert parts[-1]["stats"]["seed"] == choice["stats"]["seed"]


@pytest.mark.parametrize("more", [{}, {"continuous_usage_stats": True, "include_obfuscation": False}])
async def test_usage_of_a_stream_is_its_last_frame(http, more):
    body = completion(n=2)
    events = await stream_events(http, COMPLETIONS, body | {"stream_options": {"include_usage": True, **more}})
    assert all(event["usage"] is None for event in events[:-1])
    assert events[-1]["choices"] == []
    assert without_cached(events[-1]["usage"]) == without_cached((await ask(http, COMPLETIONS, body))["usage"])


async def test_several_prompts_are_answered_in_order_each_counted_once(http):
    prompts = [PROMPT, [137, 336, 270], [5]]
    answer = await ask(http, COMPLETIONS, completion(prompt=prompts, n=2, max_tokens=8))
    alone = [await ask(http, COMPLETIONS, completion(prompt=prompt, max_tokens=8)) for prompt in prompts]
    assert [choice["index"] for choice in answer["choices"]] == list(range(6))
    for index, choice in enumerate(answer["choices"]):
        assert choice["token_ids"] == alone[index // 2]["choices"][0]["token_ids"]
    assert answer["usage"]["prompt_tokens"] == 8 + 3 + 1
    assert answer["usage"]["completion_tokens"] == sum(len(choice["token_ids"]) for choice in answer["choices"])


async def test_fields_of_generate_reach_the_engine(http):
    stopped = await ask(http, COMPLETIONS, completion(stop_token_ids=[417], return_trace=True, mode="static", top_k=3))
    (choice,) = stopped["choices"]
    assert 417 not in choice["token_ids"]
    assert choice["finish_reason"] == "stop"
    assert {step["kind"] for step in choice["trace"]} == {"denoise"}
    longer = await ask(http, COMPLETIONS, completion(ignore_eos=True))
    assert longer["usage"]["completion_tokens"] == 16


async def test_neutral_values_are_accepted(http):
    nothing = {"presence_penalty": 0.0, "frequency_penalty": 0, "logit_bias": {}, "best_of": 1, "n": 1, "suffix": None}
    body = completion(**nothing, user="me", temperature=None, stop=None, seed=None, stream=False, echo=False, top_p=1)
    plain = await ask(http, COMPLETIONS, completion())
    assert (await ask(http, COMPLETIONS, body))["choices"][0]["text"] == plain["choices"][0]["text"]
    await ask(http, COMPLETIONS, completion(best_of=2, n=2, max_tokens=1))
    chat_nothing = {"tools": [], "tool_choice": "none", "response_format": {"type": "text"}, "modalities": ["text"]}
    await ask(http, CHAT, chat(max_tokens=1, store=False, **chat_nothing))
