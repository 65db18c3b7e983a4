"""The ratios of forwards, on networks so small that only their bookkeeping is measured."""

from __future__ import annotations

import random

import pytest
import torch

from benchmarks import forward
from benchmarks.forward import RAW, Bench, ratios
from benchmarks.plain_loop import PlainLoop
from benchmarks.shapes import random_checkpoint
from service.model import LoadOptions

SMALL = RAW | {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "head_dim": 4, "vocab_size": 1100}
SMALL |= {"mask_token_id": 1050, "eos_token_id": 1051}


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr(forward, "_STEPS", 2)
    return Bench(random_checkpoint(SMALL, LoadOptions()), random.Random(0))


@pytest.mark.parametrize("what", ["together", "mixed_step", "longest_step", "states"])
def test_every_ratio_is_of_two_times(bench: Bench, what: str) -> None:
    row = getattr(bench, what)(1)
    assert row.milliseconds > 0
    assert row.compared > 0
    assert row.ratio == pytest.approx(row.milliseconds / row.compared)  # of one round


def test_the_first_block_is_compared_with_and_without_logits(bench: Bench) -> None:
    rows = list(bench.first_block(24, 1.1, 2))
    assert [row.limit for row in rows] == [1.1, None]
    assert all(row.ratio > 0 for row in rows)


def test_transformers_computes_the_logits_of_all_positions_or_of_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = PlainLoop(random_checkpoint(SMALL, LoadOptions()))
    seen: list[int] = []
    head = plain._model.lm_head.register_forward_hook(lambda _, inputs, out: seen.append(out.shape[1]))
    caches = [plain.prefill(range(12), logits) for logits in (True, False)]
    head.remove()
    assert seen == [12, 1]
    keys = [cache.layers[0].keys for cache in caches]
    assert torch.equal(*keys)


@pytest.mark.slow  # prompts of thousands of tokens, however small the networks
def test_all_ratios_of_the_table_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward, "RAW", SMALL)
    monkeypatch.setattr(forward, "_STEPS", 1)
    assert [row.limit for row in ratios(1)] == [1.1, None, 1.0, None, 0.8, None, 0.8, None, 1.0, 1.15, 4.0, 2.0]
