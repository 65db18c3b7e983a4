"""Causal models: greedy decoding of the same network, the published schedule of drafts, and what is refused.

`test_exactness.py` compares every forward with the reference, `test_golden.py` all tokens with transformers' network.
"""

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from service.constraints.constraint import Constraint
from service.decode.mode import DecodingMode
from service.decode.modes import Direct, Dynamic, Edit, Entropy, Remask, Sequential, Speculative, Static
from service.engine import Engine, EngineConfig, GenerationRequest, SamplingParams
from service.engine.drafting.costs import StepCosts
from service.engine.request import ForwardCounts, LogprobsRequest
from service.errors import CheckpointError, ModeNotAvailable
from service.model import Checkpoint, LoadOptions, load_checkpoint, parse_config
from tests.engine.constrained import constrained, engine_of
from tests.engine.helpers import CHEAP_ROWS, request_of
from tests.engine.test_golden import expected, requests
from tests.reference import Reference
from tests.tiny import GOLDEN, I_DLM, I_DLM_NAME, golden, tiny_checkpoint, tiny_config

SIZE, MASKS = 8, 3


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    return golden(I_DLM_NAME, torch.float64)


def greedy(reference: Reference, tokens: Sequence[int]) -> list[int]:
    """The likeliest next token at each position, the mask token left out. Recomputed whole."""
    logits = reference.checkpoint.backbone.logits(reference.hidden(tokens))
    logits[:, reference.config.mask_token_id] = -torch.inf
    return logits.argmax(-1).tolist()


def published(
    reference: Reference, prompt: Sequence[int], new_tokens: int, masks: int = MASKS
) -> tuple[list[int], int]:
    """Tokens and forwards by the published schedule, which begins here with the prompt's last token as the pending one.

    A forward has the final tokens, the drafts and as many masks. It accepts the drafts that are the likeliest tokens,
    and one more token is final. The masks give the next drafts if all were accepted.
    """
    text, drafts, forwards = list(prompt), list[int](), 0
    while len(text) < len(prompt) + new_tokens:
        following = greedy(reference, [*text, *drafts, *[reference.config.mask_token_id] * masks])[len(text) - 1 :]
        accepted = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(drafts, following, strict=False)))
        text += following[: accepted + 1]
        drafts = following[accepted + 1 : accepted + 1 + masks] if accepted == len(drafts) else []
        forwards += 1
    return text[len(prompt) :][:new_tokens], forwards


@pytest.mark.parametrize("page_size", [8, 16, 32])
@pytest.mark.parametrize("mode", [Speculative(), Speculative(0, MASKS), Speculative(0, 1)])
def test_drafts_take_the_forwards_of_the_published_schedule(page_size: int, mode: Speculative) -> None:
    """Blocks and their ends change nothing."""
    options = LoadOptions(torch.float64, block_size=page_size)
    model = load_checkpoint(GOLDEN / I_DLM_NAME, options)
    reference, masks = Reference(model), mode.max_drafts or MASKS
    engine, total = Engine(model, EngineConfig(kv_cache_tokens=2048, prefix_cache=False)), (0, 0)
    for number, entry in enumerate(expected(I_DLM_NAME)):
        request = request_of(str(number), entry["prompt_token_ids"], mode, entry["max_new_tokens"])
        tokens, forwards = published(reference, request.prompt_token_ids, request.max_new_tokens, masks)
        (done,) = engine.generate([request])
        assert list(done.token_ids) == tokens
        assert done.stats.forwards.denoise + done.stats.forwards.verify == forwards
        assert done.stats.forwards.commit == 0
        total = total[0] + len(tokens), total[1] + forwards
    assert total == ((428, 148) if masks == MASKS else (428, 243))


@pytest.mark.parametrize("page_size", [6, 8])
def test_rejected_drafts_take_the_forwards_of_the_published_schedule(page_size: int) -> None:
    """Texts of other words than those of training: many drafts are rejected, also the last one of a block."""
    model = load_checkpoint(GOLDEN / I_DLM_NAME, LoadOptions(torch.float64, block_size=page_size))
    reference, rng = Reference(model), random.Random(page_size)
    engine, proposed, accepted = Engine(model, EngineConfig(kv_cache_tokens=2048, prefix_cache=False)), 0, 0
    for number in range(24):
        prompt = rng.choices(range(10, 500), k=rng.randint(1, 12))
        tokens, forwards = published(reference, prompt, 40)
        (done,) = engine.generate([request_of(str(number), prompt, Speculative(), 40)])
        assert list(done.token_ids) == tokens
        assert done.stats.forwards.denoise + done.stats.forwards.verify == forwards
        proposed, accepted = proposed + done.stats.drafts_proposed, accepted + done.stats.drafts_accepted
    assert proposed > accepted + 100


def test_golden_forwards_are_the_published_ones() -> None:
    engine = Engine(golden(I_DLM_NAME), EngineConfig(kv_cache_tokens=2048))
    for entry, request in zip(expected(I_DLM_NAME), requests(I_DLM_NAME), strict=True):
        if entry["mode"] == "speculative":
            (done,) = engine.generate([request])
            forwards = done.stats.forwards
            assert forwards.denoise + forwards.verify == entry["backbone_denoise_forwards"]
            assert done.stats.drafts_accepted > done.stats.drafts_proposed / 2 or len(done.token_ids) < SIZE


def test_plain_decoding_takes_a_forward_for_each_token(checkpoint: Checkpoint) -> None:
    engine = Engine(checkpoint, EngineConfig(kv_cache_tokens=512))
    (done,) = engine.generate([request_of("x", range(1, 2 * SIZE + 1), Sequential(), 3 * SIZE)])
    assert done.stats.forwards == ForwardCounts(prefill=1, denoise=21, commit=2)


MODES = (
    Static(), Speculative(), Speculative(0, 2), Speculative(0, 3), Speculative(verify="sequential"),
    Speculative(0, 2, verify="static", tokens_per_step=1),
)  # fmt: skip


@settings(max_examples=12, deadline=None)
@given(st.sampled_from([0.0, 0.5, 1.0]), st.integers(0, 2**31), st.sampled_from([3, 8, 16]))
def test_drafts_change_no_token_at_any_temperature_in_any_batch(temperature: float, seed: int, page_size: int) -> None:
    """Alone, and all modes in one batch, with pages that others have stored."""
    rng, model = random.Random(seed), load_checkpoint(GOLDEN / I_DLM_NAME, LoadOptions(block_size=page_size))
    entries = rng.sample(expected(I_DLM_NAME), 3)
    plain = [
        GenerationRequest(
            str(number),
            tuple(entry["prompt_token_ids"]),
            Static(),
            SamplingParams(temperature, rng.choice([1.0, 0.9]), rng.choice([0, 20]), seed=rng.randrange(2**63)),
            rng.randint(1, 40),
            frozenset(rng.sample(range(500), 40)),
        )
        for number, entry in enumerate(entries)
    ]
    alone = Engine(model, EngineConfig(kv_cache_tokens=4096))
    wanted = {request.request_id: alone.generate([request])[0] for request in plain}
    mixed = [
        replace(request, request_id=f"{n} {request.request_id}", mode=mode)
        for n, mode in enumerate(MODES)
        for request in plain
    ]
    engine = Engine(model, EngineConfig(kv_cache_tokens=4096, max_running=rng.randint(2, 18)))
    for request, done in zip(mixed, engine.generate(mixed), strict=True):
        first = wanted[request.request_id.split()[1]]
        assert (done.token_ids, done.finish_reason) == (first.token_ids, first.finish_reason)
    assert engine.state().kv_pages_used == 0


@pytest.mark.parametrize("mode", [Static(), Sequential(), Speculative()])
def test_sampled_answers_do_not_depend_on_the_size_of_a_page(mode: DecodingMode) -> None:
    sampled = [
        replace(request, mode=mode, sampling=SamplingParams(0.9, seed=seed), max_new_tokens=24)
        for seed, request in enumerate(requests(I_DLM_NAME)[:6])
    ]
    answers = [
        [done.token_ids for done in Engine(model, EngineConfig(kv_cache_tokens=4096)).generate(sampled)]
        for model in (load_checkpoint(GOLDEN / I_DLM_NAME, LoadOptions(block_size=size)) for size in (3, 8, 16))
    ]
    assert answers[0] == answers[1] == answers[2]


def test_finished_blocks_of_drafts_are_shared(checkpoint: Checkpoint) -> None:
    """A page that a row with accepted drafts has written is a page like any other."""
    engine = Engine(checkpoint, EngineConfig(kv_cache_tokens=1024))
    prompt = expected(I_DLM_NAME)[2]["prompt_token_ids"]
    (first,) = engine.generate([request_of("x", prompt, Speculative(), 40)])
    longer = [*prompt, *first.token_ids]
    (again,) = engine.generate([request_of("y", longer, Speculative(), 24)])
    (plain,) = Engine(checkpoint, EngineConfig(kv_cache_tokens=1024)).generate([request_of("z", longer, tokens=24)])
    assert again.stats.cached_tokens == (len(longer) - 1) // SIZE * SIZE
    assert again.token_ids == plain.token_ids


def test_log_probabilities_are_those_of_plain_decoding(checkpoint: Checkpoint) -> None:
    engine = Engine(checkpoint, EngineConfig(kv_cache_tokens=1024))
    prompt = expected(I_DLM_NAME)[2]["prompt_token_ids"]
    plain, drafted = engine.generate(
        [
            request_of(mode.name, prompt, mode, 30, logprobs=LogprobsRequest(2, (5,)))
            for mode in (Static(), Speculative())
        ]
    )
    picks = [
        [pick for block in done.blocks for step in block.steps for pick in step.revealed] for done in (plain, drafted)
    ]
    for pick, other in zip(*picks, strict=False):
        assert (pick.position, pick.token) == (other.position, other.token)
        assert pick.logprobs is not None
        assert other.logprobs is not None
        for (token, logprob), (other_token, other_logprob) in zip(pick.logprobs.top, other.logprobs.top, strict=True):
            assert token == other_token
            assert abs(logprob - other_logprob) < 1e-4
    assert drafted.stats.drafts_accepted > 0


@pytest.mark.parametrize("mode", [Direct(1), Remask(), Edit(), Speculative(1)])
def test_modes_that_change_tokens_or_need_mrp_are_refused(checkpoint: Checkpoint, mode: DecodingMode) -> None:
    serves = "static, dynamic, sequential, entropy, speculative with mrp_steps auto or 0$"
    with pytest.raises(ModeNotAvailable, match=serves):
        Engine(checkpoint).validate(request_of("x", [1, 2], mode))


def test_modes_that_choose_positions_go_from_left_to_right(checkpoint: Checkpoint) -> None:
    engine = Engine(checkpoint, EngineConfig(kv_cache_tokens=512))
    for mode in (Static(2), Dynamic(0.5), Entropy(1.0), Sequential(3)):
        (done,) = engine.generate([request_of("x", range(20, 30), mode, 2 * SIZE)])
        for block in done.blocks:
            positions = [pick.position for step in block.steps for pick in step.revealed]
            assert positions == sorted(positions)


def test_a_causal_checkpoint_has_no_mrp() -> None:
    with pytest.raises(CheckpointError, match="num_nextn_predict_layers is not 0: a causal model has no MRP"):
        parse_config(tiny_config(**I_DLM | {"num_nextn_predict_layers": 1}))


def test_answers_of_a_network_without_training_are_plain_ones() -> None:
    """Its drafts are noise, and hardly any is accepted."""
    model = tiny_checkpoint(3, **I_DLM)
    engine = Engine(model, EngineConfig(kv_cache_tokens=1024))
    for length in (1, 7, 8, 20):
        prompt = [(7 * index + length) % 60 for index in range(length)]
        (done,) = engine.generate([request_of("x", prompt, Speculative(), 3 * SIZE)])
        tokens, forwards = published(Reference(model), prompt, 3 * SIZE)
        assert (list(done.token_ids), done.stats.forwards.denoise + done.stats.forwards.verify) == (tokens, forwards)


def test_constrained_and_penalised_answers_are_those_of_plain_decoding() -> None:
    """There a state depends on more than the text, so each drafted state has a row."""
    engine = engine_of(I_DLM_NAME, StepCosts(CHEAP_ROWS.backbone))
    modes = (Static(), Speculative(), Speculative(0, 3))
    schema = Constraint.json({"type": "array", "items": {"enum": ["a", "bc"]}, "maxItems": 6}, "response_format")
    done = engine.generate(
        [
            constrained(I_DLM_NAME, str(number), schema, mode, SamplingParams(0.8, seed=3))
            for number, mode in enumerate(modes)
        ]
    )
    assert len({(completion.token_ids, completion.constraint_met) for completion in done}) == 1
    sampling = SamplingParams(0.5, seed=4, repetition_penalty=1.5, logit_bias={40: 2.0})
    prompt = expected(I_DLM_NAME)[2]["prompt_token_ids"]
    done = engine.generate([request_of(str(n), prompt, mode, 30, sampling=sampling) for n, mode in enumerate(modes)])
    assert len({completion.token_ids for completion in done}) == 1
