"""`return_step_map`: a step and a log-probability for every token, on POST /generate and on OpenAI's routes."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from service.api.answers import BlockFrame, GenerateAnswer
from service.replica.replica import Replica
from tests.gateway.apis import CHAT, COMPLETIONS, chat, choices, completion, stream_events
from tests.gateway.apis import ask as ask_openai
from tests.gateway.generate.helpers import CASES, EOS, PROMPT, ask, body, frames, golden_body, refused
from tests.gateway.generate.test_continued import MODES, assert_same_after_every_block, replicas  # noqa: F401
from tests.gateway.helpers import assert_shape


def plain_steps(trace: list[dict[str, Any]]) -> list[int]:
    """The steps of the tokens of a trace of a plain mode, by position: a step of the trace is one of the mode's."""
    found: dict[tuple[int, int], int] = {}
    for number, step in enumerate(trace, 1):
        found |= {(step["block"], position): number for position, *_ in step["revealed"]}
    return [found[place] for place in sorted(found)]


@pytest.mark.parametrize("case", [case for case in CASES if case["mode"] in {"static", "dynamic", "direct"}][::3])
async def test_of_a_plain_mode_is_read_off_its_trace(http: httpx.AsyncClient, case: dict[str, Any]) -> None:
    answer = await ask(http, golden_body(case, return_step_map=True, return_trace=True, seed=0))
    assert_shape(GenerateAnswer, answer)
    steps = plain_steps(answer["trace"])
    assert answer["step_map"] == steps[: len(answer["token_ids"])]
    assert len(answer["token_logprobs"]) == len(answer["token_ids"])
    assert all(logprob <= 0 for logprob in answer["token_logprobs"])
    if answer["finish_reason"] == "stop":
        stop_token = answer["stop_token"]
        assert stop_token["token_id"] == EOS
        assert stop_token["step"] == steps[len(answer["token_ids"])]
        assert stop_token["logprob"] <= 0
    else:
        assert answer["stop_token"] is None


async def test_of_speculative_is_that_of_the_verified_mode(http: httpx.AsyncClient) -> None:
    asked = body(return_step_map=True, max_new_tokens=40, temperature=0.8, seed=3, ignore_eos=True)
    for plain in ({"mode": "static"}, {"mode": "dynamic", "threshold": 0.1}, {"mode": "entropy", "entropy_bound": 9.0}):
        knobs = {name: value for name, value in plain.items() if name != "mode"}
        wanted = await ask(http, asked | plain)
        drafts = {"mode": "speculative", "mrp_steps": 3, "verify": plain["mode"], **knobs}
        answer = await ask(http, asked | drafts)
        assert answer["stats"]["forwards"]["verify"] or plain["mode"] != "static"
        assert (answer["token_ids"], answer["step_map"]) == (wanted["token_ids"], wanted["step_map"])
        assert answer["token_logprobs"] == pytest.approx(wanted["token_logprobs"], abs=1e-4)


async def test_the_blocks_of_a_stream_add_up(http: httpx.AsyncClient) -> None:
    asked = body(return_step_map=True, max_new_tokens=30, temperature=0.8, seed=3)
    whole = await ask(http, asked)
    *blocks, (_, done) = await frames(http, asked)
    for name in ("token_ids", "step_map", "token_logprobs"):
        assert [value for _, block in blocks for value in block[name]] == whole[name]
    for _, block in blocks:
        assert_shape(BlockFrame, block)
    assert done["stop_token"] == whole["stop_token"]


async def test_a_stop_text_cuts_it_as_the_tokens(http: httpx.AsyncClient) -> None:
    answer = await ask(http, body(return_step_map=True, stop="w112"))
    assert len(answer["step_map"]) == len(answer["token_ids"]) == len(answer["token_logprobs"]) > 0
    assert answer["stop_token"] is None


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: "-".join(map(str, mode.values())))
async def test_an_answer_that_another_replica_continues_has_the_same(
    replicas: tuple[Replica, Replica],  # noqa: F811
    mode: dict[str, Any],
) -> None:
    asked = body(prompt_token_ids=[*PROMPT, 1, 2, 3], max_new_tokens=30, temperature=0.9, seed=3, ignore_eos=True)
    assert await assert_same_after_every_block(*replicas, asked | mode | {"return_step_map": True}) >= 4


@pytest.mark.parametrize(
    ("path", "asked"), [(COMPLETIONS, completion(seed=3, n=2)), (CHAT, chat(seed=3, n=2, max_tokens=24))]
)
async def test_openais_choices_have_it(http: httpx.AsyncClient, path: str, asked: dict[str, Any]) -> None:
    asked = asked | {"return_step_map": True, "temperature": 0.8}
    whole = (await ask_openai(http, path, asked))["choices"]
    events = await stream_events(http, path, asked)
    for index, choice in enumerate(whole):
        assert len(choice["step_map"]) == len(choice["token_logprobs"]) == len(choice["token_ids"]) > 0
        assert (choice["stop_token"] is None) == (choice["finish_reason"] != "stop")
        parts = choices(events, index)
        for name in ("token_ids", "step_map", "token_logprobs"):
            assert [value for part in parts for value in part.get(name, [])] == pytest.approx(choice[name], abs=1e-4)
        assert parts[-1]["stop_token"] == pytest.approx(choice["stop_token"], abs=1e-4)
    plain = (await ask_openai(http, path, asked | {"return_step_map": False}))["choices"]
    assert not {"step_map", "token_logprobs", "stop_token"} & plain[0].keys()


async def test_openais_log_probabilities_are_the_same_numbers(http: httpx.AsyncClient) -> None:
    for logprobs in (0, 2):
        asked = completion(return_step_map=True, logprobs=logprobs, mode="static", temperature=0.8, seed=3)
        (choice,) = (await ask_openai(http, COMPLETIONS, asked))["choices"]
        assert choice["logprobs"]["token_logprobs"] == choice["token_logprobs"]
        assert "trace" not in choice


async def test_only_where_it_is_wanted(http: httpx.AsyncClient) -> None:
    assert not {"step_map", "token_logprobs", "stop_token"} & (await ask(http, body())).keys()
    assert (await refused(http, body(return_step_map="yes")))["param"] == "return_step_map"
