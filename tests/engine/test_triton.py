"""Triton's kernels in the engine: forwards against a full recomputation, and a short golden decode of every mode."""

import operator
import random
from dataclasses import replace
from typing import Any

import pytest
import torch

from service.engine import Engine, EngineConfig, GenerationRequest
from service.model import LoadOptions, load_checkpoint
from tests.engine.helpers import CHEAP_ROWS, checked, random_requests
from tests.engine.test_golden import PUBLISHED, assert_golden, expected, requests
from tests.thinned import fast_only
from tests.tiny import GOLDEN, tiny_checkpoint

NAME = "sdar-mrp-random-a"


@pytest.fixture(scope="module")
def engines(triton_device: str) -> Any:
    checkpoint = load_checkpoint(GOLDEN / NAME, LoadOptions(device=triton_device))
    limits = EngineConfig(kv_cache_tokens=1024, attention="triton")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("service.model.triton_support.use_triton", lambda *_: True)
        patch.setattr("service.model.layers.by_kernel", lambda _: True)
        return {on: Engine(checkpoint, replace(limits, deterministic=on)) for on in (False, True)}


def short(tokens: int = 100) -> list[tuple[dict[str, Any], GenerationRequest]]:
    """One of every mode: that with the fewest rows. It is cut behind so many tokens."""
    pairs = sorted(zip(expected(NAME), requests(NAME), strict=True), key=_rows)
    one_each = {entry["mode"]: (entry, request) for entry, request in reversed(pairs)}.values()
    return [
        (_cut(entry, tokens), replace(request, max_new_tokens=min(request.max_new_tokens, tokens)))
        for entry, request in one_each
    ]


def _rows(pair: tuple[dict[str, Any], GenerationRequest]) -> int:
    entry, request = pair
    return int(entry["backbone_denoise_forwards"]) + len(request.prompt_token_ids) // 4


def _cut(entry: dict[str, Any], tokens: int) -> dict[str, Any]:
    cut = {"token_ids": entry["token_ids"][:tokens], "max_new_tokens": min(entry["max_new_tokens"], tokens)}
    return entry | cut


@pytest.mark.parametrize("deterministic", fast_only(operator.not_, [False, True]))
def test_modes_mixed_in_one_batch(engines: Any, deterministic: bool) -> None:
    pairs = short(tokens=6 if deterministic else 3)
    assert {entry["mode"] for entry, _ in pairs} == PUBLISHED
    pairs = pairs[-2:] if deterministic else pairs  # many more programs, so two modes only
    done = engines[deterministic].generate([request for _, request in pairs])
    for (entry, _), completion in zip(pairs, done, strict=True):
        assert_golden(entry, completion)


def test_hidden_states_are_those_of_a_full_recomputation(triton_device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if triton_device == "cuda":
        pytest.skip("the kernels have no float64 on CUDA; tests/engine/test_gpu.py compares them there")
    monkeypatch.setattr("service.model.triton_support.use_triton", lambda *_: True)
    checkpoint = tiny_checkpoint(1, torch.float64, num_key_value_heads=1)
    engine, runner = checked(checkpoint, CHEAP_ROWS, attention="triton", kv_cache_tokens=512, max_prefill_tokens=8)
    requests = random_requests(random.Random(1), checkpoint, 4, longest=9)
    done = engine.generate(requests)
    assert len(done) == len(requests)
    assert runner.compared > 8
