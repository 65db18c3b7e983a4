"""Log-probabilities: of a part made by hand, and over the routes."""

import math

import pytest

from service.decode.modes import MODES
from tests.gateway.apis import CHAT, COMPLETIONS, ask, chat, choices, completion, stream_events


@pytest.mark.parametrize("mode", MODES)
async def test_every_token_of_an_answer_has_a_log_probability(http, mode):
    body = completion(prompt=[443, 286, 438], mode=mode, logprobs=1, return_trace=True)
    (choice,) = (await ask(http, COMPLETIONS, body))["choices"]
    logprobs = choice["logprobs"]
    assert [token.strip() for token in logprobs["tokens"]] == [f"w{token}" for token in choice["token_ids"]]
    assert "".join(logprobs["tokens"]) == choice["text"]
    starts = zip(logprobs["tokens"], logprobs["text_offset"], strict=True)
    assert all(choice["text"][start:].startswith(token) for token, start in starts)
    picks = {(token, confidence) for each in choice["trace"] for _, token, confidence in each["revealed"]}
    for token, logprob in zip(choice["token_ids"], logprobs["token_logprobs"], strict=True):
        assert logprob <= 0
        assert any(token == other and math.isclose(math.exp(logprob), value, abs_tol=5e-6) for other, value in picks)
    assert logprobs["top_logprobs"] == [
        {token: value} for token, value in zip(logprobs["tokens"], logprobs["token_logprobs"], strict=True)
    ]


async def test_speculative_has_the_log_probabilities_of_static(http):
    static, speculative = [
        (await ask(http, COMPLETIONS, completion(mode=mode, logprobs=0)))["choices"][0]["logprobs"]
        for mode in ("static", "speculative")
    ]
    assert static["tokens"] == speculative["tokens"]
    assert static["token_logprobs"] == pytest.approx(speculative["token_logprobs"], abs=1e-3)
    assert static["top_logprobs"] is None


async def test_a_chat_has_them_whole_and_streamed(http):
    body = chat(mode="static", logprobs=True, top_logprobs=1, max_tokens=20, stop="w99")
    (choice,) = (await ask(http, CHAT, body))["choices"]
    content = choice["logprobs"]["content"]
    assert "".join(record["token"] for record in content) == choice["message"]["content"]
    assert all(bytes(record["bytes"]).decode() == record["token"] for record in content)
    assert all(record["top_logprobs"][0]["logprob"] == record["logprob"] for record in content)
    parts = choices(await stream_events(http, CHAT, body))
    assert [record for part in parts if part["logprobs"] for record in part["logprobs"]["content"]] == content


async def test_offsets_go_on_over_the_blocks_of_a_stream(http):
    body = completion(logprobs=0, n=2, temperature=0.7, seed=1, max_tokens=12)
    whole = (await ask(http, COMPLETIONS, body))["choices"]
    events = await stream_events(http, COMPLETIONS, body)
    for index, choice in enumerate(whole):
        parts = [part["logprobs"] for part in choices(events, index) if part["logprobs"]]
        assert len(parts) > 1
        offsets = [offset for part in parts for offset in part["text_offset"]]
        assert offsets == choice["logprobs"]["text_offset"]


@pytest.mark.parametrize("stream", [False, True])
async def test_offsets_begin_behind_a_prompt_that_is_a_text(http, stream):
    """As OpenAI counts, also without `echo`. The text of token ids is not known: they begin at 0."""
    prompts = ["w5", "w5 w6 w7"]
    body = completion(prompt=prompts, logprobs=0, max_tokens=12)
    if stream:
        events = await stream_events(http, COMPLETIONS, body)
        offsets = [choices(events, index)[0]["logprobs"]["text_offset"] for index in range(2)]
    else:
        offsets = [choice["logprobs"]["text_offset"] for choice in (await ask(http, COMPLETIONS, body))["choices"]]
    assert [first for first, *_ in offsets] == [len(prompt) for prompt in prompts]
    [choice] = (await ask(http, COMPLETIONS, completion(logprobs=0)))["choices"]
    assert choice["logprobs"]["text_offset"][0] == 0


@pytest.mark.parametrize("fields", [{"mode": "static"}, {"mode": "speculative", "mrp_steps": 2}, {"mode": "remask"}])
async def test_the_likeliest_are_those_of_the_step_that_fixed_the_token(http, fields):
    """Greedy, the chosen token is the first of them; drawn, it may be any or none of them."""
    body = chat(**fields, logprobs=True, top_logprobs=20, seed=5, max_tokens=24, ignore_eos=True)
    (choice,) = (await ask(http, CHAT, body))["choices"]
    for record in choice["logprobs"]["content"]:
        first, *rest = record["top_logprobs"]
        assert len(rest) == 19
        assert first == {name: record[name] for name in ("token", "logprob", "bytes")}
        logprobs = [top["logprob"] for top in rest]
        assert logprobs == sorted(logprobs, reverse=True)
        assert sum(math.exp(top["logprob"]) for top in record["top_logprobs"]) <= 1 + 1e-6
    drawn = body | {"temperature": 1.5, "stream": False}
    (choice,) = (await ask(http, CHAT, drawn))["choices"]
    parts = choices(await stream_events(http, CHAT, drawn))
    content = [record for part in parts if part["logprobs"] for record in part["logprobs"]["content"]]
    assert content == choice["logprobs"]["content"]
    among = [record["token"] in [top["token"] for top in record["top_logprobs"]] for record in content]
    assert any(among)
    assert not all(record["token"] == record["top_logprobs"][0]["token"] for record in content)


async def test_tokens_that_a_margin_reads_are_not_sent(http):
    """The mode reads two tokens of each position. The client is told as many as it wants: none, or one."""
    lax = {"mode": "speculative", "mrp_steps": 2, "margin": 0.2, "max_tokens": 24, "ignore_eos": True}
    for wanted in (0, 1):
        (choice,) = (await ask(http, CHAT, chat(**lax, logprobs=True, top_logprobs=wanted)))["choices"]
        assert choice["stats"]["forwards"]["verify"] > 0
        assert {len(record["top_logprobs"]) for record in choice["logprobs"]["content"]} == {wanted}


async def test_completions_name_the_drawn_token_besides(http):
    """At most one more than asked for, as OpenAI says."""
    body = completion(mode="static", temperature=1.5, seed=2, logprobs=3, max_tokens=24)
    (choice,) = (await ask(http, COMPLETIONS, body))["choices"]
    fields = [choice["logprobs"][name] for name in ("tokens", "token_logprobs", "top_logprobs")]
    for token, logprob, likeliest in zip(*fields, strict=True):
        assert likeliest[token] == logprob
        assert len(likeliest) == 3 + (logprob < min(sorted(likeliest.values(), reverse=True)[:3]))
