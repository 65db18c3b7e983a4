"""The golden decodes with Triton's kernels: a short one of every published mode."""

from __future__ import annotations

import operator
from dataclasses import replace
from typing import Any

import pytest

from service.engine import Engine, EngineConfig, GenerationRequest
from service.model import LoadOptions, load_checkpoint
from tests.engine.test_golden import PUBLISHED, assert_golden, expected, requests
from tests.thinned import fast_only
from tests.tiny import GOLDEN

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
    one_each = {entry["mode"]: (entry, one) for entry, one in reversed(pairs)}.values()
    return [
        (_cut(entry, tokens), replace(one, max_new_tokens=min(one.max_new_tokens, tokens))) for entry, one in one_each
    ]


def _rows(pair: tuple[dict[str, Any], GenerationRequest]) -> int:
    entry, one = pair
    return int(entry["backbone_denoise_forwards"]) + len(one.prompt_token_ids) // 4


def _cut(entry: dict[str, Any], tokens: int) -> dict[str, Any]:
    cut = {"token_ids": entry["token_ids"][:tokens], "max_new_tokens": min(entry["max_new_tokens"], tokens)}
    return entry | cut


@pytest.mark.parametrize("deterministic", fast_only(operator.not_, [False, True]))
def test_modes_mixed_in_one_batch(engines: Any, deterministic: bool) -> None:
    pairs = short(tokens=6 if deterministic else 3)
    assert {entry["mode"] for entry, _ in pairs} == PUBLISHED
    pairs = pairs[-2:] if deterministic else pairs  # many more programs, so two modes only
    done = engines[deterministic].generate([one for _, one in pairs])
    for (entry, _), completion in zip(pairs, done, strict=True):
        assert_golden(entry, completion)


def test_alone(engines: Any) -> None:
    entry, one = short(tokens=6)[0]
    (done,) = engines[False].generate([one])
    assert_golden(entry, done)
