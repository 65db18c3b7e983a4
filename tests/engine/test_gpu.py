"""The same answers on a GPU: golden decodes in fp32, speculative = static in bf16.

`python -m pytest -m gpu tests/engine/test_gpu.py`; needs torch, safetensors and pytest, nothing of the service.
"""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from service.decode.params import Speculative, Static
from service.decode.registry import make_params
from service.demo import CHECKPOINT
from service.engine import Engine, GenerationRequest, SamplingParams
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
