"""The library: text in, text out, threads as in the program, answers that can be printed."""

import os
from collections.abc import Iterator

import pytest
import torch

from service.constraints import Constraint
from service.decode.modes import Speculative, Static
from service.demo import CHECKPOINT, check
from service.engine import EngineConfig, SamplingParams
from service.errors import InvalidRequest
from service.library import TextModel
from service.model.device import settle_threads
from tests.engine.helpers import CHEAP_ROWS
from tests.tiny import GOLDEN

STORY = "Tom has 5 apples, gets 3, loses 2."


@pytest.fixture(scope="module")
def demo() -> Iterator[TextModel]:
    """The costs of forwards are known, where the engine would measure them."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("service.engine.engine.measure", lambda *_, **__: CHEAP_ROWS)
        yield TextModel.load(CHECKPOINT, EngineConfig(kv_cache_tokens=4096))


def test_messages_are_answered_and_texts_continued(demo: TextModel) -> None:
    answer, rest = demo.generate([[{"role": "user", "content": STORY}], "The answer is"], Static(), max_new_tokens=64)
    assert check(STORY, answer.text)
    assert answer.completion.finish_reason == "stop"
    assert answer.text == demo.codec.decode(answer.completion.token_ids)
    assert rest.text == demo.codec.decode(rest.completion.token_ids)


def test_params_and_sampling_are_those_given(demo: TextModel) -> None:
    prompts = [[{"role": "user", "content": STORY}]] * 2
    drafted = demo.generate(prompts, Speculative(mrp_steps=2), max_new_tokens=16)
    assert [answer.completion.stats.mrp_steps for answer in drafted] == [2, 2]
    assert {answer.text for answer in drafted} == {demo.generate(prompts[:1], Static(), max_new_tokens=16)[0].text}
    hot = [
        demo.generate(prompts[:1], sampling=SamplingParams(2.0, seed=seed), max_new_tokens=16)[0] for seed in (1, 1, 2)
    ]
    assert hot[0].text == hot[1].text != hot[2].text


def test_without_params_it_is_the_programs_default(demo: TextModel) -> None:
    [answer] = demo.generate([[{"role": "user", "content": STORY}]])
    assert check(STORY, answer.text)
    assert answer.completion.stats.mrp_steps is not None


def test_a_constraint_holds_for_every_answer(demo: TextModel) -> None:
    prompts = [[{"role": "user", "content": STORY}], "Is it so?"]
    for answer in demo.generate(prompts, constraint=Constraint.choice(["yes", "no"]), max_new_tokens=16):
        assert answer.text in {"yes", "no"}
    with pytest.raises(InvalidRequest, match="regex"):
        demo.generate(prompts, constraint=Constraint.regex("(a"))


def test_wrong_prompts_are_refused(demo: TextModel) -> None:
    with pytest.raises(InvalidRequest, match="the prompt is empty"):
        demo.generate([""])
    bare = TextModel.load(GOLDEN / "sdar-mrp-random-a", EngineConfig(kv_cache_tokens=256))
    with pytest.raises(InvalidRequest, match="no chat template"):
        bare.generate([[{"role": "user", "content": "w1"}]])


def test_a_refused_request_leaves_nothing_behind(demo: TextModel) -> None:
    with pytest.raises(InvalidRequest, match="maximum context length is 1024"):
        demo.generate(["The answer", "The answer is " * 500], Static(), max_new_tokens=4)
    assert not demo.engine.has_work


def test_an_interrupted_request_leaves_nothing_behind(demo: TextModel, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(demo.engine, "step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            demo.generate(["The answer is"], Static())
    assert not demo.engine.has_work


class TestThreads:
    @pytest.fixture(autouse=True)
    def _undisturbed(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 4, 5}, raising=False)
        before = torch.get_num_threads()
        yield
        torch.set_num_threads(before)

    def test_of_torchs_every_core_half_are_taken(self) -> None:
        torch.set_num_threads(4)
        TextModel.load(GOLDEN / "sdar-mrp-random-a", EngineConfig(kv_cache_tokens=256))
        assert torch.get_num_threads() == 2

    @pytest.mark.parametrize("chosen", [1, 3])
    def test_a_chosen_number_of_threads_stays(self, chosen: int) -> None:
        torch.set_num_threads(chosen)
        settle_threads()
        assert torch.get_num_threads() == chosen

    def test_the_environments_number_of_threads_stays(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("OMP_NUM_THREADS", "4")
        torch.set_num_threads(4)
        settle_threads()
        assert torch.get_num_threads() == 4
