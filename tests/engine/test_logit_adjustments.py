"""Penalties, bias, min_p, min_tokens and bad words: every mode computes the definition, and drafts change nothing."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import pytest
from msgspec import structs

from service.decode.mode import DecodingMode
from service.decode.modes import Direct, Dynamic, Entropy, Remask, Sequential, Speculative, Static
from service.engine import Engine, EngineConfig, EngineDeps, GenerationRequest, SamplingParams
from service.model import Checkpoint
from tests.engine.helpers import DEAR, FAIR, FREE, random_requests, some_auto, verified
from tests.reference import Reference
from tests.tiny import tiny_checkpoint

MODES: tuple[DecodingMode, ...] = (
    Static(), Static(2), Dynamic(0.3), Sequential(2), Entropy(3.0), Direct(2), Remask(0.3), Speculative(2),
    Speculative(3, 4), Speculative(0, 3), Speculative(2, threshold=0.3), Speculative(),
)  # fmt: skip
STOPS = frozenset([7, 8, 10**12])


@cache
def tiny(block_size: int = 4) -> Checkpoint:
    return tiny_checkpoint(3, block_size=block_size)


def drawn(rng: random.Random, sampling: SamplingParams, vocabulary: Sequence[int]) -> SamplingParams:
    """Some of the parameters, each often strong enough to change the answer."""
    changes = {
        "min_p": rng.choice([0.0, 0.01, 0.1, 0.5, 1.0]),
        "repetition_penalty": rng.choice([1.0, 0.7, 1.2, 5.0]),
        "frequency_penalty": rng.choice([0.0, -0.5, 0.7, 2.0]),
        "presence_penalty": rng.choice([0.0, -1.0, 0.5, 2.0]),
        "logit_bias": {t: rng.choice([-100.0, -2.0, 1.5, 8.0]) for t in rng.sample(vocabulary, rng.choice([0, 3]))},
        "min_tokens": rng.choice([0, 3, 9]),
        "bad_words_token_ids": tuple(
            tuple(rng.sample(vocabulary, rng.choice([1, 2, 2, 3]))) for _ in range(rng.choice([0, 4, 30]))
        ),
    }
    return structs.replace(sampling, **{name: value for name, value in changes.items() if rng.random() < 0.6})


def adjusted(rng: random.Random, checkpoint: Checkpoint, count: int) -> list[GenerationRequest]:
    vocabulary = [token for token in range(30) if token != checkpoint.config.mask_token_id]
    requests = random_requests(rng, checkpoint, count)
    changed = [replace(request, sampling=drawn(rng, request.sampling, vocabulary)) for request in requests]
    return some_auto(rng, changed)


def assert_as_the_reference(checkpoint: Checkpoint, requests: list[GenerationRequest], **limits: int) -> None:
    costs = (FREE, FAIR, DEAR)[len(requests) % 3]
    config = EngineConfig(kv_cache_tokens=4096, **limits)
    done = Engine(checkpoint, config, deps=EngineDeps(costs=costs)).generate(requests)
    reference = Reference(checkpoint)
    for request, answer in zip(requests, done, strict=True):
        wanted = reference.generate(replace(request, params=verified(request.params)))
        assert (answer.token_ids, answer.finish_reason) == (wanted.token_ids, wanted.finish_reason), request
        revealed = [[pick for step in block.steps for pick in step.revealed] for block in answer.blocks]
        for block, steps in zip(revealed, wanted.steps, strict=False):
            for left, right in zip(block, [pick for step in steps for pick in step.revealed], strict=False):
                assert left[:2] == right[:2]
                assert left.confidence == pytest.approx(right.confidence, abs=1e-5)


@pytest.mark.parametrize("seed", range(3))
def test_a_mixed_batch_is_decoded_as_the_definition_says(seed: int) -> None:
    """Rows with and without adjustments, of all modes, in one forward."""
    rng = random.Random(seed)
    checkpoint = tiny((4, 8, 2)[seed])
    requests = adjusted(rng, checkpoint, 8)
    requests += [replace(r, request_id=f"plain {r.request_id}") for r in random_requests(rng, checkpoint, 3)]
    assert_as_the_reference(checkpoint, requests, max_rows=40)
