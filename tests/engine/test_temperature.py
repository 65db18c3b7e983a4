"""A low temperature is nearly greedy: rules read the model's own confidences, whatever sharpens the draw."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from service.decode.block import MASKED, Block
from service.decode.mode import DecodingMode
from service.decode.modes import Direct, Dynamic, Entropy, Remask, Sequential, Speculative, Static
from service.decode.policy import Prediction
from service.demo import CHECKPOINT
from service.engine import SamplingParams
from service.engine.forward.model_forward import ExecutionConfig
from service.engine.forward.rows import Row
from service.engine.forward.runner import ModelRunner
from service.model import load_checkpoint
from tests.engine.helpers import demo_problems

MODES: tuple[DecodingMode, ...] = (
    Static(), Dynamic(0.7), Entropy(0.1), Sequential(1, 0.1), Direct(1), Direct(2, 0.5), Remask(0.5),
    Speculative(4, 4, verify="sequential", entropy_bound=0.1, margin=0.5),
)  # fmt: skip


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_a_low_temperature_decodes_nearly_as_greedy(mode: DecodingMode) -> None:
    """The answers, and the forwards. At .01 two tokens change places only where they are almost as likely."""
    engine, requests = demo_problems()
    done = engine.generate(
        replace(request, request_id=f"{temperature} {n}", mode=mode, sampling=SamplingParams(temperature, seed=n))
        for temperature in (0, 0.01)
        for n, request in enumerate(requests)
    )
    greedy, cold = done[: len(requests)], done[len(requests) :]
    same = sum(completion.token_ids == other.token_ids for completion, other in zip(greedy, cold, strict=True))
    assert same >= 6
    forwards = [
        sum(completion.stats.forwards.denoise + completion.stats.forwards.verify for completion in done)
        for done in (greedy, cold)
    ]
    assert forwards[1] == pytest.approx(forwards[0], rel=0.05)


def predictions_at(temperature: float, attention: str) -> tuple[list[Prediction], Tensor]:
    """The predictions of a masked block of the demo, one filtered, and the logits `[L, V]` of which they are made."""
    checkpoint = load_checkpoint(CHECKPOINT)
    runner = ModelRunner(checkpoint, 8, execution=ExecutionConfig(attention))
    state = Block((MASKED,) * checkpoint.config.block_size)
    samplings = SamplingParams(temperature, seed=5), SamplingParams(temperature, top_p=0.4, top_k=2, seed=5)
    rows = [Row(state, 0, [0], writes_kv=False, sampling=sampling, entropy=True) for sampling in samplings]
    predictions = runner.begin("backbone", rows)()
    return predictions, checkpoint.backbone.logits(predictions[0].handle.hidden).float().cpu()


@pytest.mark.parametrize("temperature", [0.0, 1e-9, 0.01, 0.3, 1.0, 2.0])
@torch.inference_mode()
def test_rules_read_the_softmax_at_temperature_1_or_a_higher_one(temperature: float, attention: str) -> None:
    """Of the whole vocabulary, before filters."""
    predictions, logits = predictions_at(temperature, attention)
    probabilities = (logits / max(1.0, temperature)).softmax(-1)
    entropies = torch.special.entr(probabilities).sum(-1).tolist()
    for prediction in predictions:
        tokens = torch.tensor(prediction.tokens)
        wanted = probabilities.gather(-1, tokens[:, None])[:, 0].tolist()
        assert list(prediction.confidences) == pytest.approx(wanted, rel=1e-4)
        assert list(prediction.entropies) == pytest.approx(entropies, rel=1e-4, abs=1e-5)
        drawn = (logits / max(1e-6, temperature or 1.0)).log_softmax(-1).gather(-1, tokens[:, None])[:, 0].tolist()
        listed = list(prediction.token_logprobs)
        assert listed == (pytest.approx(drawn, rel=1e-4, abs=1e-5) if 0 < temperature < 1 else [])
