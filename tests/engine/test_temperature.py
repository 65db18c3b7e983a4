"""A low temperature is nearly greedy: rules read the model's own confidences, whatever sharpens the draw."""

from dataclasses import replace
from functools import cache

import pytest

from service.decode.mode import DecodingMode
from service.decode.modes import Direct, Dynamic, Entropy, Remask, Sequential, Speculative, Static
from service.demo import CHECKPOINT, heldout_problems
from service.engine import Engine, EngineConfig, GenerationRequest, SamplingParams
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
    greedy = engine.generate([replace(request, mode=mode) for request in requests])
    cold = engine.generate(
        [replace(request, mode=mode, sampling=SamplingParams(0.01, seed=n)) for n, request in enumerate(requests)]
    )
    same = sum(completion.token_ids == other.token_ids for completion, other in zip(greedy, cold, strict=True))
    assert same >= 6
    forwards = [
        sum(completion.stats.forwards.denoise + completion.stats.forwards.verify for completion in done)
        for done in (greedy, cold)
    ]
    assert forwards[1] == pytest.approx(forwards[0], rel=0.05)
