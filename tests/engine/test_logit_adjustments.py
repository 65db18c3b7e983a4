"""Penalties, bias, min_p, min_tokens and bad words: every mode computes the definition, and drafts change nothing."""

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from msgspec import structs

from service.constraints.constraint import Constraint
from service.decode.mode import DecodingMode
from service.decode.modes import Direct, Dynamic, Edit, Entropy, Remask, Sequential, Speculative, Static
from service.engine import Engine, EngineConfig, EngineDeps, GenerationRequest, SamplingParams
from service.engine.logit_adjuster import BadWords
from service.engine.request import LogprobsRequest
from service.errors import InvalidRequest
from service.model import Checkpoint, LoadOptions, load_checkpoint
from service.text import TextCodec
from tests.constraints.checkpoints import DEMO
from tests.constraints.checkpoints import checkpoint as checkpoint_of
from tests.engine.constrained import constrained
from tests.engine.helpers import CHEAP_ROWS, random_requests, random_sampling, some_auto, verified
from tests.reference import Reference
from tests.tiny import FAST_DLLM, FAST_DLLM_NAME, GOLDEN, GOLDEN_NAMES, tiny_checkpoint

#: rules, and modes that verify their drafts against them
PAIRS: tuple[tuple[DecodingMode, tuple[DecodingMode, ...]], ...] = (
    (Static(), (Speculative(2), Speculative(3, 4), Speculative(0, 3), Speculative())),
    (Static(2), (Speculative(2, tokens_per_step=2), Speculative(1, 4, tokens_per_step=2))),
    (Dynamic(0.3), (Speculative(2, threshold=0.3), Speculative(3, 4, threshold=0.3))),
    (Sequential(2), (Speculative(2, verify="sequential", tokens_per_step=2),)),
    (Entropy(3.0), (Speculative(2, verify="entropy", entropy_bound=3.0),)),
)
ALL_MODES = (
    *(mode for plain, drafted in PAIRS for mode in (plain, *drafted)), Direct(2), Direct(2, 0.3), Remask(0.3),
    Edit(0.3, 0.0),
)  # fmt: skip


@cache
def tiny(block_size: int = 4) -> Checkpoint:
    return tiny_checkpoint(3, block_size=block_size)


@cache
def shifted() -> Checkpoint:
    return tiny_checkpoint(3, **FAST_DLLM)


def engine_of(checkpoint: Checkpoint, **limits: Any) -> Engine:
    config = EngineConfig(**{"kv_cache_tokens": 4096, **limits})
    return Engine(checkpoint, config, deps=EngineDeps(costs=CHEAP_ROWS))


def drawn(rng: random.Random, sampling: SamplingParams, vocabulary: Sequence[int]) -> SamplingParams:
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
    done = engine_of(checkpoint, **limits).generate(requests)
    reference = Reference(checkpoint)
    for request, answer in zip(requests, done, strict=True):
        wanted = reference.generate(replace(request, mode=verified(request.mode)))
        assert (answer.token_ids, answer.finish_reason) == (wanted.token_ids, wanted.finish_reason), request
        revealed = [[pick for step in block.steps for pick in step.revealed] for block in answer.blocks]
        for block, steps in zip(revealed, wanted.steps, strict=False):
            for left, right in zip(block, [pick for step in steps for pick in step.revealed], strict=False):
                assert (left.position, left.token) == (right.position, right.token)
                assert left.confidence == pytest.approx(right.confidence, abs=1e-5)


def assert_mixed(seed: int, count: int) -> None:
    rng = random.Random(seed)
    checkpoint = shifted() if seed % 4 == 3 else tiny((4, 8, 2)[seed % 4])
    requests = adjusted(rng, checkpoint, count)
    requests += [replace(r, request_id=f"plain {r.request_id}") for r in random_requests(rng, checkpoint, 3)]
    assert_as_the_reference(checkpoint, requests, max_rows=40)


@pytest.mark.parametrize("seed", range(5))
def test_a_mixed_batch_is_decoded_as_the_definition_says(seed: int) -> None:
    assert_mixed(seed, 8)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5, 60))
def test_many_mixed_batches_are_decoded_as_the_definition_says(seed: int) -> None:
    assert_mixed(seed, 12)


def pairs(rng: random.Random, count: int) -> list[tuple[GenerationRequest, GenerationRequest]]:
    requests = []
    for number in range(count):
        plain, drafted = rng.choice(PAIRS)
        prompt = tuple(rng.choices(range(500), k=rng.randint(1, 20)))
        sampling = drawn(rng, random_sampling(rng, [0.0, 0.7, 1.2]), range(500))
        request = GenerationRequest(f"plain {number}", prompt, plain, sampling, 24, frozenset([510]))
        requests.append((request, replace(request, request_id=f"drafted {number}", mode=rng.choice(drafted))))
    return requests


@pytest.mark.parametrize(
    ("name", "candidates", "deterministic"),
    [(GOLDEN_NAMES[1], None, False), (GOLDEN_NAMES[1], 8, True), (FAST_DLLM_NAME, 8, False)],
)
def test_drafts_change_nothing(name: str, candidates: int | None, deterministic: bool) -> None:
    checkpoint = load_checkpoint(GOLDEN / name, LoadOptions(dtype=torch.float64))
    requests = pairs(random.Random(8), 12)
    shuffled = [request for pair in requests for request in pair]
    random.Random(1).shuffle(shuffled)
    engine = engine_of(checkpoint, draft_candidates=candidates, deterministic=deterministic, max_rows=64)
    done = {answer.request_id: answer for answer in engine.generate(shuffled)}
    accepted = 0
    for plain, drafted in requests:
        assert done[plain.request_id].token_ids == done[drafted.request_id].token_ids
        accepted += done[drafted.request_id].stats.drafts_accepted
    assert accepted > 0


@pytest.mark.parametrize("mode", ALL_MODES, ids=str)
def test_no_answer_has_a_bad_word_or_an_early_end(mode: DecodingMode) -> None:
    """Also where a forward reveals several tokens. Without the parameters the answers have such words."""
    rng, checkpoint = random.Random(4), tiny(8)
    requests = [
        GenerationRequest(
            str(number), tuple(rng.choices(range(60), k=9)), mode, SamplingParams(rng.choice([0, 1.3]), seed=number), 30
        )
        for number in range(12)
    ]
    free = [answer.token_ids for answer in engine_of(checkpoint).generate(requests)]
    words = {tokens[start : start + rng.choice([1, 2, 3])] for tokens in free for start in range(0, 27, 9)}
    stops = frozenset(tokens[10] for tokens in free) - {word[0] for word in words}
    changes = {"bad_words_token_ids": tuple(words), "min_tokens": 20}
    limited = [
        replace(request, sampling=structs.replace(request.sampling, **changes), stop_token_ids=stops)
        for request in requests
    ]
    answers = [answer.token_ids for answer in engine_of(checkpoint).generate(limited)]
    assert any(has_word(tokens, words) for tokens in free)
    assert not any(has_word(tokens, words) for tokens in answers)
    assert all(len(tokens) >= 20 and stops.isdisjoint(tokens[:20]) for tokens in answers)


def has_word(tokens: Sequence[int], words: set[tuple[int, ...]]) -> bool:
    return any(tuple(tokens[start : start + len(word)]) == word for word in words for start in range(len(tokens)))


def test_a_constraint_comes_before_bad_words_and_min_tokens() -> None:
    """Forbidden tokens stay where the constraint allows no other ones, and its end is no early end."""
    codec = TextCodec.load(checkpoint_of(DEMO).path)
    words = codec.encode_bad_words(["1", "2"])
    for mode in (Static(), Speculative(3), Direct(2), Remask(0.5), Dynamic(0.1)):
        for choices, expected in ((["1", "2"], {"1", "2"}), (["1", "2", "3"], {"3"})):
            sampling = SamplingParams(bad_words_token_ids=words, min_tokens=60, repetition_penalty=1.5)
            request = constrained(DEMO, "r", Constraint.choice(choices), mode, sampling)
            (answer,) = engine_of(checkpoint_of(DEMO)).generate([request])
            assert codec.decode(answer.token_ids) in expected, mode
            assert (answer.finish_reason, answer.constraint_met) == ("stop", True)


@pytest.mark.parametrize("mode", [Static(), Dynamic(0.3), Speculative(2), Direct(2)], ids=str)
def test_log_probabilities_are_of_the_adjusted_logits(mode: DecodingMode) -> None:
    """Forbidden tokens are not listed. A top token has the log-probability and the confidence of a chosen one."""
    sampling = SamplingParams(0.8, seed=3, frequency_penalty=1.5, bad_words_token_ids=((4,), (7,)), min_p=0.001)
    request = GenerationRequest("r", (3, 1, 4), mode, sampling, 12, logprobs=LogprobsRequest(64, (4, 7)))
    (answer,) = engine_of(tiny()).generate([request])
    picks = [pick for block in answer.blocks for step in block.steps for pick in step.revealed]
    for pick in picks:
        assert pick.logprobs is not None
        top = dict(pick.logprobs.top)
        assert not {4, 7} & top.keys()
        assert pick.logprobs.by_id == (-math.inf, -math.inf)
        assert top[pick.token] == pytest.approx(pick.logprob, abs=1e-5)
        confidences = dict(zip(top, pick.logprobs.confidences, strict=True))
        assert confidences[pick.token] == pytest.approx(pick.confidence, abs=1e-5)
    assert len(picks) >= 12


@pytest.mark.parametrize(
    ("changes", "param", "message"),
    [
        ({"min_p": 1.5}, "min_p", "min_p is 1.5, allowed are 0.0 to 1.0"),
        ({"frequency_penalty": 2.5}, "frequency_penalty", "frequency_penalty is 2.5, allowed are -2.0 to 2.0"),
        ({"min_tokens": -1}, "min_tokens", "min_tokens is -1, allowed is 0"),
        ({"logit_bias": {3: 200.0}}, "logit_bias", "logit_bias of token 3 is 200.0, allowed are -100.0 to 100.0"),
        ({"bad_words_token_ids": ((1,), ())}, "bad_words", "bad_words has a word without tokens"),
        ({"logit_bias": {64: 1.0}}, "logit_bias", "logit_bias has token 64, allowed are 0 to 63 without the mask"),
        ({"bad_words_token_ids": ((1, 60),)}, "bad_words", "bad_words has token 60, allowed are 0 to 63"),
        ({"bad_words_token_ids": tuple((t,) for t in range(64) if t != 60)}, "bad_words", "leave no token"),
    ],
)
def test_values_that_are_refused(changes: dict[str, Any], param: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message) as caught:
        engine_of(tiny()).generate([GenerationRequest("r", (1,), sampling=SamplingParams(**changes))])
    assert caught.value.param == param


class TestBadWords:
    WORDS = BadWords(((1,), (2, 3), (4, 5, 6), (2, 2)))

    @pytest.mark.parametrize(
        ("answer", "block", "position", "tokens"),
        [
            ((9, 2), (-1, -1), 0, {3, 2}),
            ((), (2, -1, -1), 1, {3, 2}),
            ((), (2, -1, 2), 1, {3, 2}),
            ((), (-1, 5, 6), 0, {4}),
            ((4,), (-1, 5, 6), 0, {4}),
            ((9,), (-1, -1, 6), 1, set()),
        ],
    )
    def test_every_token_of_a_word_is_forbidden_beside_the_others(
        self, answer: tuple[int, ...], block: tuple[int, ...], position: int, tokens: set[int]
    ) -> None:
        assert self.WORDS.short == {1}
        assert self.WORDS.completing(answer, block, position) == tokens
