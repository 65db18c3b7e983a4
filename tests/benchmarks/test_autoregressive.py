"""The autoregressive yardstick is transformers' own Qwen3: it writes what Qwen3 writes with the same weights."""

import pytest
import torch

from benchmarks.autoregressive import AutoregressiveLoop
from service.errors import CheckpointError
from service.model import load_checkpoint
from tests.tiny import GOLDEN, GOLDEN_NAMES, LLADA2_NAME


def test_it_generates_every_token_causally(monkeypatch):
    checkpoint = load_checkpoint(GOLDEN / GOLDEN_NAMES[0])
    loop, answers = AutoregressiveLoop(checkpoint), []
    generate = loop._model.generate

    def kept_answers(*args, **options):
        answers.append(generate(*args, **options))
        return answers[-1]

    monkeypatch.setattr(loop._model, "generate", kept_answers)
    assert loop.tokens_per_s(requests=3, prompt_tokens=5, new_tokens=7, rounds=2) > 0
    assert [answer.shape for answer in answers] == [(3, 12)] * 3
    assert torch.equal(answers[0], answers[1])
    with torch.inference_mode():
        logits = loop._model(answers[0]).logits  # one causal forward over the whole text
    assert torch.equal(logits[:, 4:-1].argmax(-1), answers[0][:, 5:])


def test_without_transformers_network_it_says_so():
    with pytest.raises(CheckpointError, match="transformers has no network for model_type 'llada2_moe'"):
        AutoregressiveLoop(load_checkpoint(GOLDEN / LLADA2_NAME))
