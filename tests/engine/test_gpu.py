"""The same answers on a GPU: golden decodes in fp32, speculative = static in bf16.

`python -m pytest -m gpu tests/engine/test_gpu.py`; needs torch, safetensors and pytest, nothing of the service.
"""

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from service.decode.modes import Direct, Dynamic, Remask, Speculative, Static
from service.decode.registry import make_params
from service.demo import CHECKPOINT
from service.engine import Engine, EngineConfig, GenerationRequest, SamplingParams
from service.model import LoadOptions, load_checkpoint

pytestmark = pytest.mark.gpu
GOLDEN = sorted((Path(__file__).parents[1] / "golden").glob("sdar-*"))
KNOBS = ("tokens_per_step", "threshold", "mrp_steps")


@pytest.mark.parametrize("folder", GOLDEN, ids=lambda folder: folder.name)
def test_golden_decodes_in_fp32_alone_and_mixed(folder, monkeypatch):
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", False)
    engine = Engine(load_checkpoint(folder, LoadOptions(torch.float32, "cuda")))
    cases = json.loads((folder / "expected.json").read_text())
    requests = [
        GenerationRequest(
            str(number), tuple(case["prompt_token_ids"]),
            make_params(case["mode"], {knob: case[knob] for knob in KNOBS if knob in case}),
            max_new_tokens=case["max_new_tokens"], stop_token_ids=frozenset({510}),
        )
        for number, case in enumerate(cases)
    ]  # fmt: skip
    expected = [tuple(case["token_ids"]) for case in cases]
    assert [engine.generate([request])[0].token_ids for request in requests] == expected
    assert [completion.token_ids for completion in engine.generate(requests)] == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("folder", [*GOLDEN, CHECKPOINT], ids=lambda folder: folder.name)
def test_deterministic_is_equal_to_the_bit_alone_and_in_any_batch(folder, dtype):
    """Confidences are the softmax of the logits: one bit of difference anywhere shows in some of them."""
    checkpoint = load_checkpoint(folder, LoadOptions(dtype, "cuda"))
    engine, rng = Engine(checkpoint, EngineConfig(deterministic=True)), random.Random(folder.name)
    modes = (Static(), Dynamic(0.4), Direct(2), Speculative(3), Remask(0.4))
    requests = [
        GenerationRequest(
            f"{number}",
            tuple(rng.choices(range(400), k=rng.randint(1, 60))),
            modes[number % len(modes)],
            SamplingParams(rng.choice((0.0, 0.7, 1.2)), rng.choice((1.0, 0.8)), rng.choice((0, 20)), seed=number),
            rng.randint(8, 60),
        )
        for number in range(60)
    ]
    alone = [_picks(engine.generate([request])[0]) for request in requests]
    for _ in range(3):
        batch = rng.sample(requests, rng.randint(2, 60))
        for completion in engine.generate(batch):
            assert _picks(completion) == alone[int(completion.request_id)]


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.2])
def test_deterministic_speculative_is_static_in_bf16_on_random_weights(temperature):
    for folder in GOLDEN:
        checkpoint = load_checkpoint(folder, LoadOptions(torch.bfloat16, "cuda"))
        engine = Engine(checkpoint, EngineConfig(deterministic=True))
        static = [
            GenerationRequest(f"{seed}", (1, 40 + seed, 50, 2), Static(), SamplingParams(temperature, seed=seed), 48)
            for seed in range(64)
        ]
        drafted = [replace(request, params=Speculative(1 + int(request.request_id) % 4)) for request in static]
        expected = [completion.token_ids for completion in engine.generate(static)]
        assert [completion.token_ids for completion in engine.generate(drafted)] == expected


def _picks(completion):
    steps = [step for block in completion.blocks for step in block.steps]
    return completion.token_ids, [pick for step in steps for pick in step.revealed]


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.2])
def test_speculative_equals_static_in_bf16(temperature):
    engine = Engine(load_checkpoint(CHECKPOINT, LoadOptions(torch.bfloat16, "cuda")))
    static = [
        GenerationRequest(f"{seed}", (1, 40 + seed, 50, 2), Static(), SamplingParams(temperature, seed=seed), 64)
        for seed in range(64)
    ]
    speculative = [replace(request, params=Speculative(1 + int(request.request_id) % 4)) for request in static]
    expected = [completion.token_ids for completion in engine.generate(static)]
    assert [completion.token_ids for completion in engine.generate(speculative)] == expected
