"""`edit` in the engine: golden decodes by the published loop, and the end of answers whose block may still change."""

import json
from dataclasses import replace
from typing import Any

import pytest

from service.decode.modes import Dynamic, Edit, Sequential, Static
from service.engine import Completion, Engine, EngineConfig, EngineDeps, GenerationRequest
from service.engine.request import LogprobsRequest
from tests.clock import Clock
from tests.engine.helpers import request_of
from tests.engine.test_golden import STOP, assert_golden, expected, requests
from tests.tiny import GOLDEN, LLADA2_NAME, golden

#: one block
PROMPT = tuple(range(100, 132))


def golden_edits(name: str) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = json.loads((GOLDEN / name / "edits.json").read_text())
    return entries


EDITS = golden_edits(LLADA2_NAME)


def edits(name: str = LLADA2_NAME) -> list[GenerationRequest]:
    return [
        GenerationRequest(
            f"edit {number}",
            tuple(entry["prompt_token_ids"]),
            Edit(entry["threshold"], entry["edit_threshold"], entry["max_post_edit_steps"]),
            max_new_tokens=entry["max_new_tokens"],
            stop_token_ids=frozenset([STOP]),
        )
        for number, entry in enumerate(golden_edits(name))
    ]


def assert_golden_edits(engine: Engine, name: str) -> None:
    """In one batch with the golden decodes of other modes."""
    entries = [*expected(name), *golden_edits(name)]
    for entry, done in zip(entries, engine.generate([*requests(name), *edits(name)]), strict=True):
        assert_golden(entry, done)


def replaced(done: Completion) -> int:
    return sum(len(step.remasked) for block in done.blocks for step in block.steps)


def test_golden_decodes_alone() -> None:
    engine = Engine(golden(LLADA2_NAME), EngineConfig(kv_cache_tokens=512))
    for entry, request in zip(EDITS, edits(), strict=True):
        (done,) = engine.generate([request])
        assert_golden(entry, done)
        assert done.stats.remasked == replaced(done)
        assert (replaced(done) > 0) == (entry["edits"] > 0)
    assert engine.state().kv_pages_used == 0


@pytest.mark.parametrize("limits", [{}, {"max_running": 3}, {"deterministic": True}], ids=str)
def test_golden_decodes_beside_other_modes(limits: dict[str, Any]) -> None:
    engine = Engine(golden(LLADA2_NAME), EngineConfig(**({"kv_cache_tokens": 4096} | limits)))
    assert_golden_edits(engine, LLADA2_NAME)


def test_a_token_that_is_replaced_later_ends_no_answer() -> None:
    """Every token that stood in the block, but does not stay, is a stop token."""
    engine = Engine(golden(LLADA2_NAME), EngineConfig(kv_cache_tokens=1024))
    done = engine.generate(edits())
    tried = 0
    for request, answer in zip(edits(), done, strict=True):
        steps = [step for block in answer.blocks for step in block.steps]
        passing = {pick.token for step in steps for pick in step.revealed} - set(answer.token_ids) - {STOP}
        if answer.finish_reason == "length" and passing and replaced(answer):
            (again,) = engine.generate([replace(request, stop_token_ids=frozenset(passing))])
            assert again.token_ids == answer.token_ids
            tried += 1
    assert tried > 2


@pytest.mark.parametrize(("mode", "final"), [(Edit(0.9, 0.0), 0), (Sequential(), 7)], ids=str)
def test_no_token_of_a_block_that_may_change_is_final_when_time_is_up(mode: Any, final: int) -> None:
    clock = Clock()
    engine = Engine(golden(LLADA2_NAME), EngineConfig(kv_cache_tokens=512), deps=EngineDeps(clock=clock))
    engine.submit(request_of("x", PROMPT, mode, 64, timeout_s=5.0))
    for _ in range(7):
        assert engine.step() == []
    clock.now += 5
    (event,) = engine.step()
    assert (event.finish_reason, len(event.token_ids)) == ("timeout", final)
    assert sum(len(step.revealed) for step in event.steps) >= 6


def test_log_probabilities_are_of_the_forward_that_wrote_the_token() -> None:
    engine = Engine(golden(LLADA2_NAME), EngineConfig(kv_cache_tokens=1024))
    generations = [replace(request, logprobs=LogprobsRequest(2)) for request in edits()]
    checked = 0
    for plain, done in zip(engine.generate(edits()), engine.generate(generations), strict=True):
        assert done.token_ids == plain.token_ids
        for step in (step for block in done.blocks for step in block.steps):
            for pick in step.revealed:
                assert pick.logprobs is not None
                assert pick.logprobs.top[0][0] == pick.token
                checked += pick.position in step.remasked
    assert checked > 20


def test_without_edits_it_is_dynamic_but_for_the_forward_that_confirms_a_block() -> None:
    engine = Engine(golden(LLADA2_NAME), EngineConfig(kv_cache_tokens=512))
    for tau in (0.05, 0.3):
        dynamic, never, confirmed = engine.generate(
            request_of(str(mode), PROMPT, mode, 64) for mode in (Dynamic(tau), Edit(tau, 1.0, 0), Edit(tau, 1.0))
        )
        assert dynamic.token_ids == never.token_ids == confirmed.token_ids
        assert dynamic.stats.forwards.denoise == never.stats.forwards.denoise
        assert confirmed.stats.forwards.denoise == dynamic.stats.forwards.denoise + len(confirmed.blocks)


def test_answers_do_not_depend_on_the_batch_at_any_temperature() -> None:
    engine = Engine(golden(LLADA2_NAME), EngineConfig(kv_cache_tokens=2048))
    sampled = [
        replace(request, sampling=replace_sampling(request, number), mode=Edit(0.3, 0.05))
        for number, request in enumerate(edits()[:6])
    ]
    alone = [engine.generate([request])[0].token_ids for request in sampled]
    beside = [replace(request, request_id=f"other {request.request_id}", mode=Static()) for request in sampled]
    together = engine.generate([*beside, *sampled])[len(beside) :]
    assert [done.token_ids for done in together] == alone
    assert any(map(replaced, together))


def replace_sampling(request: GenerationRequest, seed: int) -> Any:
    return type(request.sampling)(0.8, seed=seed)
