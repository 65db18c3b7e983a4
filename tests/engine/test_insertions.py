"""`edit` with insertions and deletions in the engine: golden decodes by the published class, and what never moves."""

from dataclasses import replace
from typing import Any

import pytest

from service.constraints.constraint import Constraint
from service.decode.modes import Dynamic, Edit, Entropy, Sequential, Speculative, Static
from service.engine import Completion, Engine, EngineConfig, EngineDeps, SamplingParams
from service.engine.request import LogprobsRequest
from service.errors import InvalidRequest
from service.model import LoadOptions, load_checkpoint
from tests.clock import Clock
from tests.engine.constrained import constrained, engine_of
from tests.engine.helpers import request_of
from tests.engine.test_edit import assert_golden_edits, edits, golden_edits
from tests.engine.test_golden import STOP, assert_golden, requests
from tests.tiny import GOLDEN, LLADA22_NAME, golden

EDITS = golden_edits(LLADA22_NAME)
#: DELETE and SPLIT of the checkpoint
EDIT_TOKENS = {507, 508}
PROMPT = tuple(range(100, 132))


def num_moves(done: Completion) -> int:
    return sum(bool(step.moved) for block in done.blocks for step in block.steps)


def test_golden_decodes_alone() -> None:
    engine, moves = Engine(golden(LLADA22_NAME), EngineConfig(kv_cache_tokens=512)), 0
    repeats = 0
    for entry, request in zip(EDITS, edits(LLADA22_NAME), strict=True):
        (done,) = engine.generate([request])
        assert_golden(entry, done)
        assert done.stats.forwards.denoise == entry["backbone_denoise_forwards"]
        assert done.stats.remasked == sum(len(step.remasked) for block in done.blocks for step in block.steps)
        assert tuple(token.token for token in done.step_map) == done.token_ids + (STOP,) * (
            done.finish_reason == "stop"
        )
        moves += (num_moves(done) == entry["moves"]) * entry["moves"]
        repeats += entry["repeated_states"]
    assert moves > 40
    assert repeats
    assert engine.state().kv_pages_used == 0


@pytest.mark.parametrize("limits", [{}, {"max_running": 3}, {"deterministic": True}], ids=str)
def test_golden_decodes_beside_other_modes(limits: dict[str, Any]) -> None:
    engine = Engine(golden(LLADA22_NAME), EngineConfig(**({"kv_cache_tokens": 4096} | limits)))
    assert_golden_edits(engine, LLADA22_NAME)


def test_eight_bits_decode_alone_as_together() -> None:
    checkpoint = load_checkpoint(GOLDEN / LLADA22_NAME, LoadOptions(quantization="w8a8"))
    engine = Engine(checkpoint, EngineConfig(kv_cache_tokens=4096, deterministic=True))
    generations = [*edits(LLADA22_NAME)[:3], *requests(LLADA22_NAME)[:3]]
    alone = [engine.generate([request])[0].token_ids for request in generations]
    assert [done.token_ids for done in engine.generate(generations)] == alone


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_no_other_mode_gets_an_edit_token(temperature: float) -> None:
    """Beside requests that do, and not among the log-probabilities."""
    engine = Engine(golden(LLADA22_NAME), EngineConfig(kv_cache_tokens=8192))
    sampling = SamplingParams(temperature, seed=3)
    modes = (Static(), Dynamic(0.3), Sequential(), Entropy(2.0), Speculative(0, 4))
    plain = [
        request_of(f"{number} {mode}", PROMPT[number:], mode, 64, sampling=sampling, logprobs=LogprobsRequest(20))
        for number in range(2)
        for mode in modes
    ]
    drawn = [replace(request, sampling=sampling) for request in edits(LLADA22_NAME)]
    done = engine.generate([*plain, *drawn])
    for completion in done[: len(plain)]:
        steps = [step for block in completion.blocks for step in block.steps]
        assert not any(step.moved for step in steps)
        for pick in (pick for step in steps for pick in step.revealed):
            assert pick.logprobs is not None
            assert EDIT_TOKENS.isdisjoint({pick.token, *(token for token, _ in pick.logprobs.top)})
    assert sum(map(num_moves, done[len(plain) :])) > 20
    assert not any(EDIT_TOKENS.intersection(completion.token_ids) for completion in done)


@pytest.mark.parametrize(
    "sampling",
    [SamplingParams(min_tokens=20), SamplingParams(bad_words_token_ids=((1, 2),))],
    ids=["min_tokens", "bad_words"],
)
def test_nothing_moves_where_tokens_are_forbidden_by_their_place(sampling: SamplingParams) -> None:
    engine = Engine(golden(LLADA22_NAME), EngineConfig(kv_cache_tokens=4096))
    done = engine.generate(replace(request, sampling=sampling) for request in edits(LLADA22_NAME))
    assert not any(map(num_moves, done))
    assert any(completion.stats.remasked for completion in done)
    assert not any(EDIT_TOKENS.intersection(completion.token_ids) for completion in done)


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_nothing_moves_with_a_grammar(temperature: float) -> None:
    constraint, sampling = Constraint.regex("[a-z ]{40}"), SamplingParams(temperature, seed=4)
    edited, dynamic = engine_of(LLADA22_NAME).generate(
        constrained(LLADA22_NAME, str(mode), constraint, mode, sampling) for mode in (Edit(0.4, 0.0), Dynamic(0.4))
    )
    assert edited.token_ids == dynamic.token_ids
    assert edited.constraint_met
    assert not num_moves(edited)
    assert EDIT_TOKENS.isdisjoint(edited.token_ids)


def test_bad_words_that_leave_only_edit_tokens_are_refused() -> None:
    words = tuple((token,) for token in range(507))
    request = request_of(
        "x", PROMPT, Static(), 8, sampling=SamplingParams(bad_words_token_ids=(*words, (510,), (511,)))
    )
    with pytest.raises(InvalidRequest, match="bad_words and min_tokens leave no token of the vocabulary"):
        Engine(golden(LLADA22_NAME), EngineConfig(kv_cache_tokens=512)).submit(request)


def test_a_bias_against_an_edit_token_leaves_the_other_one() -> None:
    engine = Engine(golden(LLADA22_NAME), EngineConfig(kv_cache_tokens=4096))
    biased = [replace(request, sampling=SamplingParams(logit_bias={507: -100.0})) for request in edits(LLADA22_NAME)]
    steps = [step for done in engine.generate(biased) for block in done.blocks for step in block.steps if step.moved]
    assert steps
    for step in steps:  # no position is left out
        sources = [source for source in step.moved if source >= 0]
        assert sources == [*range(len(sources))]


def test_edit_tokens_of_a_prompt_stay() -> None:
    engine = Engine(golden(LLADA22_NAME), EngineConfig(kv_cache_tokens=4096))
    mode, prompt = Edit(0.3, 0.0), (*PROMPT, 507, 5, 508)
    (done,) = engine.generate([request_of("x", prompt, mode, 29)])
    assert num_moves(done)
    assert all(step.moved[:3] in {(), (0, 1, 2)} for step in done.blocks[0].steps)
    assert len(done.token_ids) == 29


def test_no_token_of_a_block_that_may_change_is_final_when_time_is_up() -> None:
    clock = Clock()
    engine = Engine(golden(LLADA22_NAME), EngineConfig(kv_cache_tokens=512), deps=EngineDeps(clock=clock))
    engine.submit(request_of("x", PROMPT, Edit(0.3, 0.0), 64, timeout_s=5.0))
    for _ in range(7):
        assert engine.step() == []
    clock.now += 5
    (event,) = engine.step()
    assert (event.finish_reason, event.token_ids) == ("timeout", ())
    assert any(step.moved for step in event.steps)


def test_log_probabilities_stay_with_a_token_that_moves() -> None:
    """Those of the last forward that wrote it."""
    engine = Engine(golden(LLADA22_NAME), EngineConfig(kv_cache_tokens=4096))
    wanted = [replace(request, logprobs=LogprobsRequest(2)) for request in edits(LLADA22_NAME)]
    for plain, done in zip(engine.generate(edits(LLADA22_NAME)), engine.generate(wanted), strict=True):
        assert done.token_ids == plain.token_ids
        for left, right in zip(plain.step_map, done.step_map, strict=True):
            assert left[:2] == right[:2]
            assert left.logprob == pytest.approx(right.logprob, abs=1e-5)


def test_answers_do_not_depend_on_the_batch_at_any_temperature() -> None:
    engine = Engine(golden(LLADA22_NAME), EngineConfig(kv_cache_tokens=4096))
    sampled = [
        replace(request, sampling=SamplingParams(0.8, 0.9, seed=number), mode=Edit(0.3, 0.05))
        for number, request in enumerate(edits(LLADA22_NAME)[:6])
    ]
    alone = [engine.generate([request])[0].token_ids for request in sampled]
    beside = [replace(request, request_id=f"other {request.request_id}", mode=Static()) for request in sampled]
    together = engine.generate([*beside, *sampled])[len(beside) :]
    assert [done.token_ids for done in together] == alone
    assert sum(map(num_moves, together)) > 10
