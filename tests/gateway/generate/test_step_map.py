"""`return_step_map`: a step and a log-probability for every token, on POST /generate and on OpenAI's routes."""

from typing import Any

import pytest

from service.api.answers import BlockFrame, GenerateAnswer
from tests.gateway.apis import CHAT, COMPLETIONS, chat, choices, completion, stream_events
from tests.gateway.apis import ask as ask_openai
from tests.gateway.generate.helpers import CASES, EOS, ask, body, frames, golden_body
from tests.gateway.helpers import assert_shape


def plain_steps(trace: list[dict[str, Any]]) -> list[int]:
    """The steps of the tokens of a trace of a plain mode, by position: a step of the trace is one of the mode's."""
    steps: dict[tuple[int, int], int] = {}
    for number, step in enumerate(trace, 1):
        steps |= {(step["block"], position): number for position, *_ in step["revealed"]}
    return [steps[position] for position in sorted(steps)]


@pytest.mark.parametrize("case", [case for case in CASES if case["mode"] in {"static", "dynamic", "direct"}][::3])
async def test_a_plain_mode_has_the_steps_of_its_trace(http, case):
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


async def test_speculative_has_the_steps_of_the_verified_mode(http):
    request = body(return_step_map=True, max_new_tokens=40, temperature=0.8, seed=3, ignore_eos=True)
    for plain in ({"mode": "static"}, {"mode": "dynamic", "threshold": 0.1}, {"mode": "entropy", "entropy_bound": 9.0}):
        knobs = {name: value for name, value in plain.items() if name != "mode"}
        wanted = await ask(http, request | plain)
        drafts = {"mode": "speculative", "mrp_steps": 3, "verify": plain["mode"], **knobs}
        answer = await ask(http, request | drafts)
        assert answer["stats"]["forwards"]["verify"] or plain["mode"] != "static"
        assert (answer["token_ids"], answer["step_map"]) == (wanted["token_ids"], wanted["step_map"])
        assert answer["token_logprobs"] == pytest.approx(wanted["token_logprobs"], abs=1e-4)


async def test_the_blocks_of_a_stream_add_up(http):
    request = body(return_step_map=True, max_new_tokens=30, temperature=0.8, seed=3)
    whole = await ask(http, request)
    *blocks, (_, done) = await frames(http, request)
    for name in ("token_ids", "step_map", "token_logprobs"):
        assert [value for _, block in blocks for value in block[name]] == whole[name]
    for _, block in blocks:
        assert_shape(BlockFrame, block)
    assert done["stop_token"] == whole["stop_token"]


@pytest.mark.parametrize(
    ("path", "body_"), [(COMPLETIONS, completion(seed=3, n=2)), (CHAT, chat(seed=3, n=2, max_tokens=24))]
)
async def test_openais_choices_have_a_step_map(http, path, body_):
    body_ = body_ | {"return_step_map": True, "temperature": 0.8}
    whole = (await ask_openai(http, path, body_))["choices"]
    events = await stream_events(http, path, body_)
    for index, choice in enumerate(whole):
        assert len(choice["step_map"]) == len(choice["token_logprobs"]) == len(choice["token_ids"]) > 0
        assert (choice["stop_token"] is None) == (choice["finish_reason"] != "stop")
        parts = choices(events, index)
        for name in ("token_ids", "step_map", "token_logprobs"):
            assert [value for part in parts for value in part.get(name, [])] == pytest.approx(choice[name], abs=1e-4)
        assert parts[-1]["stop_token"] == pytest.approx(choice["stop_token"], abs=1e-4)
    plain = (await ask_openai(http, path, body_ | {"return_step_map": False}))["choices"]
    assert not {"step_map", "token_logprobs", "stop_token"} & plain[0].keys()
