"""`n` answers to one prompt on POST /generate: with OpenAI's seeds, whole and streamed."""

from typing import Any

import pytest

from service.api.answers import BlockFrame, Done, GenerateAnswer, GenerateAnswers, StepFrame
from service.errors import DeadlineExceeded
from tests.gateway.apis import COMPLETIONS
from tests.gateway.doubles import Scripted
from tests.gateway.generate.helpers import GENERATE, PROMPT, ask, body, essence, frames
from tests.gateway.helpers import assert_shape, over

SAMPLED = {"temperature": 0.9, "seed": 2**63 - 2, "max_new_tokens": 20, "ignore_eos": True}


async def test_each_is_the_answer_to_its_own_seed(http):
    """The seed after the last is 0."""
    answers = await ask(http, body(n=3, **SAMPLED))
    assert_shape(GenerateAnswers, answers)
    assert [choice["choice"] for choice in answers["choices"]] == [0, 1, 2]
    assert len({tuple(choice["token_ids"]) for choice in answers["choices"]}) == 3
    for seed, choice in zip((2**63 - 2, 2**63 - 1, 0), answers["choices"], strict=True):
        assert_shape(GenerateAnswer, choice)
        assert choice["seed"] == seed
        del choice["choice"]
        assert essence(choice) == essence(await ask(http, body(**SAMPLED | {"seed": seed})))
    prompt, completions = len(PROMPT), sum(choice["usage"]["completion_tokens"] for choice in answers["choices"])
    assert answers["usage"] == {
        "prompt_tokens": prompt, "completion_tokens": completions, "total_tokens": prompt + completions
    }  # fmt: skip


async def test_one_answer_has_its_plain_form(http):
    answer = await ask(http, body(n=1))
    assert_shape(GenerateAnswer, answer)
    assert "choice" not in answer
    assert all("choice" not in frame for _, frame in await frames(http, body(n=1)))


async def test_a_stream_has_the_frames_of_all(http):
    whole = (await ask(http, body(n=3, return_step_map=True, **SAMPLED)))["choices"]
    events = await frames(http, body(n=3, return_step_map=True, stream_steps=True, **SAMPLED))
    shapes: dict[str, Any] = {"block": BlockFrame, "step": StepFrame, "done": Done}
    for name, frame in events:
        assert_shape(shapes[name], frame)
    for index, choice in enumerate(whole):
        parts = [(name, frame) for name, frame in events if frame["choice"] == index]
        assert [name for name, _ in parts][-1] == "done"
        for field in ("token_ids", "step_map"):
            assert [value for name, part in parts if name == "block" for value in part[field]] == choice[field]
        assert [frame["index"] for name, frame in parts if name == "block"] == [0, 1, 2]
    assert [name for name, _ in events].count("done") == 3


@pytest.mark.parametrize("path", [GENERATE, COMPLETIONS])
@pytest.mark.parametrize("stream", [False, True])
async def test_one_that_is_late_does_not_speak_for_the_others(path, stream):
    late = DeadlineExceeded("timeout_s is 9, nothing was decoded by then", param="timeout_s")
    async with over(Scripted(late)) as http:
        body_ = {"model": "golden", "prompt": "a", "stream": stream}
        many = (await http.post(path, json={**body_, "n": 3})).json()["error"]
        alone = (await http.post(path, json=body_)).json()["error"]
    assert many["message"] == f"3 answers were asked for, and one failed: {late.message}"
    assert alone["message"] == late.message
    assert many["param"] == alone["param"] == "timeout_s"
