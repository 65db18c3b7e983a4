"""Every forward with Triton's kernels against a full recomputation: all modes, prompts in chunks, shared prefixes."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

from service.decode.mode import DecodingMode
from service.decode.modes import Remask, Speculative, Static
from service.engine import Engine, EngineConfig, EngineDeps, GenerationRequest, SamplingParams
from tests.engine.helpers import FAIR, checked, random_requests
from tests.reference import Reference
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


@pytest.mark.parametrize("mode", [Static(), Speculative(2), Remask(0.2)], ids=str)
def test_penalties_and_filters_are_those_of_the_definition(
    triton_device: str, monkeypatch: pytest.MonkeyPatch, mode: DecodingMode
) -> None:
    if triton_device == "cuda":
        pytest.skip("the kernels have no float64 on CUDA")
    monkeypatch.setattr("service.model.triton_support.use_triton", lambda *_: True)
    checkpoint = tiny_checkpoint(1, torch.float64, num_key_value_heads=1)
    sampling = SamplingParams(
        0.9, seed=4, min_p=0.05, repetition_penalty=1.4, frequency_penalty=0.5, min_tokens=8, logit_bias={9: 3.0},
        bad_words_token_ids=((4,), (9, 9)),
    )  # fmt: skip
    request = GenerationRequest("r", (3, 1, 4, 1, 5), mode, sampling, 8, frozenset([5, 8]))
    plain = replace(request, request_id="plain", sampling=SamplingParams(0.9, seed=4))
    config = EngineConfig(kv_cache_tokens=512, attention="triton")
    done = Engine(checkpoint, config, deps=EngineDeps(costs=FAIR)).generate([request, plain])
    for answer, source in zip(done, (request, plain), strict=True):
        assert answer.token_ids == Reference(checkpoint).generate(source).token_ids
