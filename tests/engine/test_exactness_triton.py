"""Every forward with Triton's kernels against a full recomputation: all modes, prompts in chunks, shared prefixes."""

from __future__ import annotations

import random

import pytest
import torch

from tests.engine.helpers import FAIR, checked, random_requests
from tests.tiny import tiny_checkpoint


def test_hidden_states_are_those_of_a_full_recomputation(triton_device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if triton_device == "cuda":
        pytest.skip("the kernels have no float64 on CUDA; tests/engine/test_gpu.py compares them there")
    monkeypatch.setattr("service.model.triton_support.use_triton", lambda *_: True)
    checkpoint = tiny_checkpoint(1, torch.float64, num_key_value_heads=1)
    engine, runner = checked(checkpoint, FAIR, attention="triton", kv_cache_tokens=512, max_prefill_tokens=8)
    requests = random_requests(random.Random(1), checkpoint, 4, longest=9)
    done = engine.generate(requests)
    assert len(done) == len(requests)
    assert runner.compared > 8
