"""A low temperature is nearly greedy: rules read the model's own confidences, whatever sharpens the draw."""

from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import Tensor

from service.decode.block import MASKED, Block
from service.decode.mode import DecodingMode
from service.decode.modes import Direct, Dynamic, Entropy, Remask, Sequential, Speculative, Static
from service.decode.policy import Prediction
from service.demo import CHECKPOINT, heldout_problems
from service.engine import Engine, EngineConfig, GenerationRequest, SamplingParams
from service.engine.forward.model_forward import ExecutionConfig
from service.engine.forward.rows import Row
from service.engine.forward.runner import CheckpointRunner
from service.model import load_checkpoint
from service.text import TextCodec

MODES: tuple[DecodingMode, ...] = (
    Static(), Dynamic(0.7), Entropy(0.1), Sequential(1, 0.1), Direct(1), Remask(0.5),
    Speculative(4, 4, verify="sequential", entropy_bound=0.1, margin=0.5),
)  # fmt: skip


@cache
def demo() -> tuple[Engine, tuple[GenerationRequest, ...]]:
    codec, engine = TextCodec.load(CHECKPOINT), Engine(load_checkpoint(CHECKPOINT), EngineConfig(prefix_cache=False))
    stops = frozenset(engine.model.eos_token_ids)
    return engine, tuple(
        GenerationRequest(str(number), tuple(codec.encode_message(problem.prompt)), stop_token_ids=stops)
        for number, problem in enumerate(heldout_problems(8))
    )


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_a_low_temperature_decodes_nearly_as_greedy(mode: DecodingMode) -> None:
    """The answers, and the forwards. At .01 two tokens change places only where they are almost as likely."""
    engine, requests = demo()
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


def prediction_at(temperature: float, attention: str) -> tuple[Prediction, Tensor]:
    """The prediction of a masked block of the demo, and the logits `[L, V]` of which it is made."""
    checkpoint = load_checkpoint(CHECKPOINT)
    runner = CheckpointRunner(checkpoint, 8, execution=ExecutionConfig(attention))
    state = Block((MASKED,) * checkpoint.config.block_size)
    row = Row(state, 0, [0], writes_kv=False, sampling=SamplingParams(temperature, seed=5), entropy=True)
    (prediction,) = runner.begin("backbone", [row])()
    return prediction, checkpoint.backbone.logits(prediction.handle.hidden).float().cpu()


@pytest.mark.parametrize("temperature", [0.0, 1e-9, 0.01, 0.3, 1.0, 2.0])
@torch.inference_mode()
def test_rules_read_the_softmax_at_temperature_1_or_a_higher_one(temperature: float, attention: str) -> None:
    prediction, logits = prediction_at(temperature, attention)
    probabilities = (logits / max(1.0, temperature)).softmax(-1)
    tokens = torch.tensor(prediction.tokens)
    wanted = probabilities.gather(-1, tokens[:, None])[:, 0].tolist()
    assert list(prediction.confidences) == pytest.approx(wanted, rel=1e-4)
    entropies = torch.special.entr(probabilities).sum(-1).tolist()
    assert list(prediction.entropies) == pytest.approx(entropies, rel=1e-4, abs=1e-5)
    drawn = (logits / max(1e-6, temperature or 1.0)).log_softmax(-1).gather(-1, tokens[:, None])[:, 0].tolist()
    assert list(prediction.token_logprobs) == (pytest.approx(drawn, rel=1e-4, abs=1e-5) if 0 < temperature < 1 else [])
