"""The library: text in, text out, threads as in the program, answers that can be printed."""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch

from mrp_serve import CheckpointError, EngineConfig, InvalidRequest, SettingsError, TextModel
from service.decode.block import Pick
from service.decode.mode import RuleMode
from service.decode.modes import Dynamic, Speculative, Static
from service.decode.policy import Prediction
from service.decode.rules import Rule
from service.demo import check
from service.model.device import settle_threads
from tests.engine.helpers import CHEAP_ROWS
from tests.rules import Halving
from tests.tiny import GOLDEN

STORY = "Tom has 5 apples, gets 3, loses 2."
CHAT = [{"role": "user", "content": STORY}]


class DraftedHalving(Speculative, frozen=True):
    """`speculative` against a mode of one's own."""

    @property
    def plain(self) -> RuleMode:
        return Halving()


@dataclass(frozen=True)
class Nothing(Rule):
    """Picks nothing, which would never end."""

    def __call__(self, prediction: Prediction) -> tuple[Pick, ...]:
        return ()


class Idle(RuleMode, frozen=True):
    """A mode with a field that is no knob."""

    name: ClassVar[str] = "idle"
    seconds: float = 0.0

    @property
    def rule(self) -> Rule:
        return Nothing()


@pytest.fixture(scope="module")
def demo() -> Iterator[TextModel]:
    """The costs of forwards are known, where the engine would measure them."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("service.engine.engine.measure", lambda *_, **__: CHEAP_ROWS)
        yield TextModel.load(config=EngineConfig(kv_cache_tokens=4096))


def test_messages_are_answered_and_texts_continued(demo: TextModel) -> None:
    answer, rest = demo.generate([CHAT, "The answer is"], Static(), max_new_tokens=64)
    assert check(STORY, answer.text)
    assert answer.completion.finish_reason == "stop"
    assert answer.text == demo.codec.decode(answer.completion.token_ids)
    assert rest.text == demo.codec.decode(rest.completion.token_ids)
    assert demo.chat(CHAT, "static", max_tokens=64).text == answer.text


def test_a_text_is_one_prompt_and_not_its_letters(demo: TextModel) -> None:
    single = demo.generate("The answer is", "static", max_tokens=8)
    prompts = ["The answer is", demo.codec.encode("The answer is")]
    texts = [answer.text for answer in demo.generate(prompts, "static", max_tokens=8)]
    assert texts == [single.text] * 2


def test_the_fields_are_those_of_the_http_api(demo: TextModel) -> None:
    drafted = demo.generate([CHAT] * 2, "speculative", mrp_steps=2, max_tokens=16)
    assert [answer.completion.stats.mrp_steps for answer in drafted] == [2, 2]
    assert {answer.text for answer in drafted} == {demo.chat(CHAT, Static(), max_tokens=16).text}
    assert demo.chat(CHAT, Speculative(mrp_steps=2), max_tokens=16).completion.stats.mrp_steps == 2
    hot = [demo.chat(CHAT, temperature=2.0, seed=seed, max_tokens=16).text for seed in (1, 1, 2)]
    assert hot[0] == hot[1] != hot[2]
    assert check(STORY, demo.chat(CHAT, quality="lossless").text)
    assert "Tom" not in demo.chat(CHAT, bad_words=["Tom"], max_tokens=32).text


def test_a_mode_of_ones_own_is_taken_as_it_is(demo: TextModel) -> None:
    whole = demo.chat(CHAT, Halving(), max_tokens=16)
    forwards = whole.completion.stats.forwards
    assert (forwards.verify, forwards.denoise < len(whole.completion.token_ids)) == (0, True)
    for mode in (Halving(), DraftedHalving(mrp_steps=2)):
        assert [answer.text for answer in demo.generate([CHAT] * 2, mode, max_tokens=16)] == [whole.text] * 2
        assert "".join(block.text for block in demo.stream(CHAT, mode, max_tokens=16)) == whole.text
        assert demo.chat(CHAT, mode, regex="[a-z]{3,9} [0-9]{1,3} [a-z]{5,9}", max_tokens=32).completion.constraint_met


@pytest.mark.parametrize(
    ("mode", "fields", "message"),
    [
        (Dynamic(2.0), {}, "threshold is 2.0, allowed is 0 < threshold <= 1"),
        (Halving(), {"threshold": 0.5}, "threshold is 0.5 beside the mode Halving(), which has its knobs"),
        (Static(), {"quality": "fast"}, "quality is 'fast' beside the mode Static("),
        (Halving, {}, "mode is <class 'tests.rules.Halving'>, allowed are static"),
        ("speculative", {"verify": Halving()}, "verify is Halving(): Input should be 'static'"),
        (Idle(), {}, "the rule Nothing() picks no position, expected is one at least"),
    ],
)
def test_a_mode_of_ones_own_is_refused_for_its_own_reasons(
    demo: TextModel, mode: Any, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidRequest, match=f"^{re.escape(message)}"):
        demo.chat(CHAT, mode, max_tokens=16, **fields)
    assert not demo.engine.has_work


def test_loading_measures_the_costs_of_forwards(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = []
    monkeypatch.setattr("service.engine.engine.measure", lambda *_, **__: measured.append(1) or CHEAP_ROWS)
    model = TextModel.load(config=EngineConfig(kv_cache_tokens=256))
    assert measured == [1]
    model.chat(CHAT, max_tokens=8)
    assert measured == [1]


def test_without_a_mode_it_is_the_programs_default(demo: TextModel) -> None:
    answer = demo.chat(CHAT)
    assert check(STORY, answer.text)
    assert answer.completion.stats.mrp_steps is not None


def test_a_constraint_holds_for_every_answer(demo: TextModel) -> None:
    for answer in demo.generate([CHAT, "Is it so?"], choice=["yes", "no"], max_tokens=16):
        assert answer.text in {"yes", "no"}
        assert answer.completion.constraint_met
    with pytest.raises(InvalidRequest, match="regex"):
        demo.generate("Is it so?", regex="(a")


def test_a_stop_text_ends_an_answer(demo: TextModel) -> None:
    whole = demo.chat(CHAT, "static", max_tokens=64).text
    answer = demo.chat(CHAT, "static", stop=[" So", "nowhere"], max_tokens=64)
    assert answer.text == whole.partition(" So")[0]
    assert answer.completion.finish_reason == "stop"
    assert not demo.engine.has_work


def test_a_stream_gives_the_answer_block_by_block(demo: TextModel) -> None:
    whole = demo.chat(CHAT, "static", max_tokens=64)
    blocks = list(demo.stream(CHAT, "static", max_tokens=64))
    assert len(blocks) > 2
    assert "".join(block.text for block in blocks) == whole.text
    assert [block.event.finish_reason for block in blocks] == [None] * (len(blocks) - 1) + ["stop"]


def test_a_closed_stream_leaves_nothing_behind(demo: TextModel) -> None:
    stream = demo.stream(CHAT, "static", max_tokens=64)
    next(stream)
    with pytest.raises(InvalidRequest, match="still streamed"):
        demo.generate("x", max_tokens=1)
    stream.close()
    assert not demo.engine.has_work


@pytest.mark.parametrize(
    ("prompts", "fields", "message"),
    [
        ("", {}, 'prompt is "": String should have at least 1 character'),
        (None, {}, "none of them given, exactly one of prompt, prompt_token_ids, messages"),
        (5, {}, "prompt is 5: Input should be a valid string"),
        ([5], {}, "prompt is 5: Input should be a valid string"),
        (CHAT, {}, 'prompt is {"role": "user"'),
        ([[{"role": "user"}]], {}, "messages.0.content is missing"),
        ("x", {"mode": "specul"}, 'mode is "specul", allowed are static'),
        ("x", {"mrp_step": 3}, "'mrp_step' is not a field; did you mean 'mrp_steps'?"),
        ("x", {"mode": "static", "mrp_steps": 3}, "mode 'static' does not use mrp_steps"),
        ("x", {"temperature": "hot"}, 'temperature is "hot": Input should be a valid number'),
        ("x", {"max_tokens": 4, "max_new_tokens": 5}, "max_tokens is 4 and max_new_tokens is 5"),
        ("x", {"max_tokens": 4, "min_tokens": 5}, "min_tokens is 5, allowed are 0 to max_new_tokens, 4"),
        ("x", {"stream": True}, "'stream' is not a field"),
        ("x", {"quality": "best"}, "quality is"),
    ],
)
def test_a_wrong_prompt_or_field_is_refused_as_over_http(
    demo: TextModel, prompts: Any, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidRequest, match=f"^{re.escape(message)}"):
        demo.generate(prompts, **fields)
    assert not demo.engine.has_work


def test_a_text_is_no_chat(demo: TextModel) -> None:
    with pytest.raises(InvalidRequest, match='messages is "Tom": Input should be a valid list'):
        demo.chat("Tom")  # type: ignore[arg-type]
    bare = TextModel.load(GOLDEN / "sdar-mrp-random-a", EngineConfig(kv_cache_tokens=256))
    with pytest.raises(InvalidRequest, match="no chat template"):
        bare.chat([{"role": "user", "content": "w1"}])


def test_a_refused_request_leaves_nothing_behind(demo: TextModel) -> None:
    with pytest.raises(InvalidRequest, match="maximum context length is 1024"):
        demo.generate(["The answer", "The answer is " * 500], Static(), max_new_tokens=4)
    assert not demo.engine.has_work


def test_loading_names_a_wrong_device_type_or_checkpoint() -> None:
    with pytest.raises(SettingsError, match="device is 'tpu'"):
        TextModel.load(device="tpu")
    with pytest.raises(SettingsError, match="dtype is 'int8', allowed are"):
        TextModel.load(dtype="int8")
    with pytest.raises(CheckpointError, match="neither a folder nor a hub name"):
        TextModel.load("nowhere")


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
