"""Requests that lose their KV pages and get them back: the same answers, events, steps and log-probabilities."""

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from msgspec import structs

from service.constraints.constraint import Constraint
from service.decode.mode import DecodingMode
from service.decode.modes import Direct, Dynamic, Sequential, Speculative, Static
from service.engine import BlockEvent, Engine, EngineConfig, EngineDeps, GenerationRequest, SamplingParams, Stats
from service.engine.drafting.costs import StepCosts
from service.engine.request import LogprobsRequest, Sharing
from service.model import Checkpoint
from tests.constraints.checkpoints import checkpoint as constrained_checkpoint
from tests.engine.constrained import constrained
from tests.engine.helpers import SHAPES, SLOW_HOST, audit, random_requests, shaped, without_mrp
from tests.engine.test_scoring import pinned, read
from tests.preemptions import Disturbed, use_preemptions
from tests.thinned import fast_rows
from tests.tiny import FAST_DLLM_NAME, GOLDEN_NAMES, I_DLM_NAME, golden

Course = list[object]


def engine_of(checkpoint: Checkpoint, **limits: object) -> Engine:
    costs = SLOW_HOST if checkpoint.mrp else StepCosts(SLOW_HOST.backbone, turn=SLOW_HOST.turn)
    config = EngineConfig(**({"kv_cache_tokens": 2048, "max_rows": 40, "max_prefill_tokens": 16} | limits))  # type: ignore[arg-type]
    return Engine(checkpoint, config, deps=EngineDeps(costs=costs))


def courses(engine: Engine, requests: Sequence[GenerationRequest]) -> dict[str, Course]:
    """All that a client may see of each request, in order, but times and counts of forwards."""
    seen: dict[str, Course] = {request.request_id: [] for request in requests}
    for request in requests:
        engine.submit(request)
    while engine.has_work:
        events = engine.step()
        for progress in engine.progress:
            seen[progress.request_id].append((progress.index, progress.first, progress.steps))
        for event in events:
            seen[event.request_id].append(visible(event))
        audit(engine._pages, [running.lease for running in engine._scheduler.started])
    assert engine.state().kv_pages_used == 0
    return seen


def visible(event: BlockEvent) -> BlockEvent:
    stats = event.stats
    return structs.replace(event, stats=Stats(decoded_tokens=stats.decoded_tokens, remasked=stats.remasked))


def assert_same(
    monkeypatch: pytest.MonkeyPatch, checkpoint: Checkpoint, requests: Sequence[GenerationRequest], **limits: object
) -> None:
    """The requests with and without preemptions, in turns and ahead, with and without the prefix cache."""
    use_preemptions(monkeypatch, share=0.0)
    undisturbed = courses(engine_of(checkpoint, **limits), requests)
    for ahead in (False, True):
        for prefix_cache in (False, True):
            use_preemptions(monkeypatch, share=0.15, seed=len(requests))
            more = {"async_scheduling": ahead, "prefix_cache": prefix_cache}
            assert courses(engine_of(checkpoint, **(limits | more)), requests) == undisturbed
            assert Disturbed.preempted_total > len(requests) / 2


def with_fixed_drafts(mode: DecodingMode) -> DecodingMode:
    """The steps of `auto` follow the load."""
    return structs.replace(mode, mrp_steps=2) if isinstance(mode, Speculative) and mode.mrp_steps == "auto" else mode


@pytest.mark.parametrize(
    ("shape", "seed"),
    fast_rows(lambda shape, seed: seed == 0, [(shape, seed) for shape in range(len(SHAPES)) for seed in range(4)]),
)
def test_any_request_goes_on_as_if_it_had_kept_its_pages(
    monkeypatch: pytest.MonkeyPatch, shape: int, seed: int
) -> None:
    checkpoint, rng = shaped(shape), random.Random(100 * shape + seed)
    requests = [
        replace(
            request,
            mode=with_fixed_drafts(request.mode),
            report_steps=True,
            logprobs=LogprobsRequest(2, (5,)) if number % 3 == 0 else None,
            sharing=Sharing(tenant=rng.choice(["", "a"]), priority=rng.randint(0, 9)),
        )
        for number, request in enumerate(random_requests(rng, checkpoint, 7, longest=40))
    ]
    assert_same(monkeypatch, checkpoint, requests)


@pytest.mark.parametrize("name", [GOLDEN_NAMES[1], FAST_DLLM_NAME, I_DLM_NAME])
def test_penalties_bad_words_and_biases_count_the_tokens_that_stand(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    checkpoint = golden(name, torch.float64)
    modes = [Static(2), Dynamic(0.3), Sequential(), without_mrp(Speculative(0, 3))]
    requests = [
        GenerationRequest(
            str(number),
            (3, 4, 5, 6, 7, 3),
            modes[number % 4],
            SamplingParams(
                0.8, seed=number, repetition_penalty=1.4, frequency_penalty=0.6, presence_penalty=0.3,
                logit_bias={9: 2.0, 11: -100.0}, min_tokens=6, bad_words_token_ids=((3, 4), (9,)) if number % 2 else (),
            ),
            max_new_tokens=40,
            stop_token_ids=frozenset(checkpoint.config.eos_token_ids),
            keep_steps=True,
        )
        for number in range(6)
    ]  # fmt: skip
    assert_same(monkeypatch, checkpoint, requests)


@pytest.mark.parametrize("mode", [Static(2), Dynamic(0.4), Direct(2), Speculative(2, 4)])
def test_a_grammars_state_goes_on(monkeypatch: pytest.MonkeyPatch, mode: DecodingMode) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "integer"}}, "required": ["a"]}
    name, constraint = GOLDEN_NAMES[0], Constraint.json(schema, "response_format")
    requests = [
        constrained(name, str(seed), constraint, mode, SamplingParams(0.9, seed=seed), tokens=60) for seed in range(4)
    ]
    assert_same(monkeypatch, constrained_checkpoint(name), requests, deterministic=True)


def test_answers_of_one_prompt_share_its_pages_and_lose_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    request = GenerationRequest("x", tuple(range(3, 25)), Static(2), SamplingParams(1.0), max_new_tokens=30)
    copies = [
        replace(
            request, request_id=str(seed), sampling=SamplingParams(1.0, seed=seed), sharing=Sharing("abc"[seed % 3])
        )
        for seed in range(8)
    ]
    assert_same(monkeypatch, golden(GOLDEN_NAMES[1], torch.float64), copies)


def test_requests_that_score_go_on_beside_those_that_lose_their_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint, rng = golden(GOLDEN_NAMES[0]), random.Random(4)
    scored = [read(f"scored {number}", pinned(rng, 60, 12)) for number in range(3)]
    decoded = random_requests(rng, checkpoint, 4, longest=40)
    assert_same(
        monkeypatch, checkpoint, [*decoded, *scored], max_rows=checkpoint.config.block_size + 3, deterministic=True
    )
