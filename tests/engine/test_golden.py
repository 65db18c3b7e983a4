"""The golden decodes: tokens and forwards of an independent implementation, for every mode."""

import json
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from service.decode.modes import Direct, Speculative, Static
from service.decode.registry import make_mode
from service.engine import Completion, Engine, EngineConfig, EngineDeps, GenerationRequest
from service.engine.drafting.costs import StepCosts
from service.model import LoadOptions, load_checkpoint
from tests.engine.helpers import CHEAP_ROWS, DEAR_ROWS, FREE_ROWS
from tests.reference import Reference
from tests.thinned import fast_only, fast_rows
from tests.tiny import (
    ALL_NAMES,
    DIFFCODER_NAME,
    EXPERTS_NAME,
    FAST_DLLM_NAME,
    GOLDEN,
    GOLDEN_NAMES,
    I_DLM_NAME,
    LLADA2_NAME,
    LLADA22_NAME,
    golden,
)

#: those with blocks of 32: a forward has more rows than some limits allow
WIDE_NAMES = (LLADA2_NAME, LLADA22_NAME, FAST_DLLM_NAME)
KNOBS = ("tokens_per_step", "threshold", "mrp_steps")
STOP = 510
#: the modes of the MRP paper
PUBLISHED = {"static", "dynamic", "direct", "speculative", "remask"}


@cache
def expected(name: str) -> list[dict[str, Any]]:
    return json.loads((GOLDEN / name / "expected.json").read_text())


def requests(name: str) -> list[GenerationRequest]:
    return [
        GenerationRequest(
            str(number),
            tuple(entry["prompt_token_ids"]),
            make_mode(entry["mode"], {knob: entry[knob] for knob in KNOBS if knob in entry}),
            max_new_tokens=entry["max_new_tokens"],
            stop_token_ids=frozenset([STOP]),
        )
        for number, entry in enumerate(expected(name))
    ]


def assert_golden(entry: dict[str, Any], done: Completion) -> None:
    assert list(done.token_ids) == entry["token_ids"]
    assert done.finish_reason == ("length" if len(done.token_ids) == entry["max_new_tokens"] else "stop")
    forwards = done.stats.forwards
    assert forwards.denoise + forwards.verify <= entry["backbone_denoise_forwards"]
    assert sum((block.token_ids for block in done.blocks), ()) == done.token_ids


def test_the_list_covers_every_published_mode_on_every_checkpoint() -> None:
    for name in GOLDEN_NAMES:
        assert {entry["mode"] for entry in expected(name)} == PUBLISHED
        assert len(expected(name)) == 30
    assert {entry["mode"] for entry in expected(EXPERTS_NAME)} == {"static", "dynamic"}
    assert len(expected(EXPERTS_NAME)) == 24
    for name in (LLADA2_NAME, LLADA22_NAME):
        assert {entry["mode"] for entry in expected(name)} == {"static", "dynamic", "sequential"}
        assert len(expected(name)) == 15
    assert {entry["mode"] for entry in expected(DIFFCODER_NAME)} == PUBLISHED
    assert len(expected(DIFFCODER_NAME)) == 28
    assert {entry["mode"] for entry in expected(FAST_DLLM_NAME)} == PUBLISHED
    assert len(expected(FAST_DLLM_NAME)) == 28
    assert {entry["mode"] for entry in expected(I_DLM_NAME)} == {"static", "sequential", "speculative"}
    assert len(expected(I_DLM_NAME)) == 18


@pytest.mark.parametrize("name", ALL_NAMES)
def test_alone(name: str) -> None:
    engine = Engine(golden(name), EngineConfig(kv_cache_tokens=512))
    for entry, request in zip(expected(name), requests(name), strict=True):
        (done,) = engine.generate([request])
        assert_golden(entry, done)
    assert engine.state().kv_pages_used == 0


#: limits of an engine, and the checkpoints that are decoded within them in the fast tests
LIMITS: tuple[tuple[dict[str, int | bool], tuple[str, ...]], ...] = (
    ({}, ALL_NAMES),
    ({"max_rows": 18}, (GOLDEN_NAMES[0], EXPERTS_NAME)),
    ({"max_running": 3}, (GOLDEN_NAMES[1],)),
    ({"kv_cache_tokens": 160}, (GOLDEN_NAMES[2],)),
    ({"deterministic": True}, (GOLDEN_NAMES[1], EXPERTS_NAME)),
)


@pytest.mark.parametrize(
    ("name", "limits"),
    fast_rows(
        lambda name, limits: (limits, name) in [(row_limits, fast) for row_limits, names in LIMITS for fast in names],
        [
            (name, limits)
            for limits, _ in LIMITS
            for name in ALL_NAMES
            if name not in WIDE_NAMES or "max_rows" not in limits
        ],
    ),
)
def test_all_modes_mixed_in_one_batch(name: str, limits: dict[str, int | bool]) -> None:
    engine = Engine(golden(name), EngineConfig(**({"kv_cache_tokens": 4096} | limits)))
    for entry, done in zip(expected(name), engine.generate(requests(name)), strict=True):
        assert_golden(entry, done)


@pytest.mark.parametrize(
    ("name", "costs"),
    fast_rows(
        lambda name, costs: name == GOLDEN_NAMES[1] or costs is CHEAP_ROWS,
        [(name, costs) for name in ALL_NAMES for costs in (FREE_ROWS, CHEAP_ROWS, DEAR_ROWS)],
    ),
)
def test_drafts_that_are_left_to_the_engine(name: str, costs: StepCosts) -> None:
    available = costs if golden(name).mrp else StepCosts(costs.backbone)
    engine = Engine(golden(name), EngineConfig(kv_cache_tokens=4096), deps=EngineDeps(costs=available))
    lossless = [
        (entry, replace(request, mode=Speculative("auto")))
        for entry, request in zip(expected(name), requests(name), strict=True)
        if request.mode == Static() or request.mode.name == "speculative"
    ]
    assert len(lossless) >= 6
    for (entry, _), done in zip(lossless, engine.generate([request for _, request in lossless]), strict=True):
        if entry["mode"] == "static":
            assert_golden(entry, done)
        assert list(done.token_ids) == entry["token_ids"]


@pytest.mark.undisturbed
@pytest.mark.parametrize("name", fast_only((GOLDEN_NAMES[0], EXPERTS_NAME).__contains__, ALL_NAMES))
def test_again_from_the_prefix_cache(name: str) -> None:
    engine = Engine(golden(name), EngineConfig(kv_cache_tokens=8192))
    engine.generate(requests(name))
    size, shifted = engine.model.block_size, engine.model.shifted
    again = engine.generate(requests(name))
    for entry, request, done in zip(expected(name), requests(name), again, strict=True):
        assert_golden(entry, done)
        whole = len(request.prompt_token_ids) % size == 0
        assert done.stats.forwards.prefill == (shifted and whole)  # the last block's outputs predict the first token
        assert done.stats.cached_tokens == len(request.prompt_token_ids) // size * size
    mixed = Engine(golden(name), EngineConfig(kv_cache_tokens=256))
    for entry, done in zip(expected(name) * 2, generate_twice(mixed, requests(name)), strict=True):
        assert_golden(entry, done)


def generate_twice(engine: Engine, requests: list[GenerationRequest]) -> list[Completion]:
    again = [replace(request, request_id=f"again {request.request_id}") for request in requests]
    return engine.generate([*requests, *again])


@pytest.mark.parametrize("name", fast_only((GOLDEN_NAMES[0], EXPERTS_NAME).__contains__, ALL_NAMES))
def test_the_reference_of_the_other_tests_agrees(name: str) -> None:
    reference = Reference(golden(name))
    for entry, request in zip(expected(name), requests(name), strict=True):
        done = reference.generate(request)
        assert list(done.token_ids) == entry["token_ids"]
        if not reference.config.causal:  # there the reference has no drafts past a block's end
            assert done.denoise_forwards <= entry["backbone_denoise_forwards"]


# --- the other published kinds of modules ------------------------------------------------------------

KIND_OPTIONS = ("mrp_scale", "mrp_residual")


def kinds() -> dict[tuple[str, str], list[dict[str, Any]]]:
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for entry in json.loads((GOLDEN / "kinds.json").read_text()):
        groups.setdefault((entry["checkpoint"], next(name for name in KIND_OPTIONS if name in entry)), []).append(entry)
    return groups


def test_the_kinds_are_on_every_checkpoint_with_one_to_three_steps() -> None:
    assert kinds().keys() == {(name, kind) for name in GOLDEN_NAMES for kind in KIND_OPTIONS}
    assert all({entry["mrp_steps"] for entry in group} == {1, 2, 3} for group in kinds().values())


@pytest.mark.parametrize(("name", "kind"), kinds())
def test_the_other_kinds_alone_and_together(name: str, kind: str) -> None:
    """As the published loop decodes them, and with drafts by them `static` stays the same."""
    group = kinds()[name, kind]
    checkpoint = load_checkpoint(GOLDEN / name, LoadOptions(**{kind: group[0][kind]}))
    generations = [
        GenerationRequest(
            str(number),
            tuple(entry["prompt_token_ids"]),
            Direct(entry["mrp_steps"]),
            max_new_tokens=entry["max_new_tokens"],
            stop_token_ids=frozenset([STOP]),
        )
        for number, entry in enumerate(group)
    ]
    for max_running in (1, 16):
        engine = Engine(checkpoint, EngineConfig(max_running, kv_cache_tokens=4096))
        for entry, done in zip(group, engine.generate(generations), strict=True):
            assert_golden(entry, done)
    done = engine.generate(
        replace(request, request_id=f"{mode} {request.request_id}", mode=mode)
        for mode in (Static(), Speculative(3))
        for request in generations
    )
    static, drafted = done[: len(group)], done[len(group) :]
    assert [completion.token_ids for completion in static] == [completion.token_ids for completion in drafted]
