"""Cached, batched, fused decoding computes what the plain reference does; speculative is static."""

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from service.decode.modes import Direct, Dynamic, Entropy, Remask, Sequential, Speculative, Static
from service.engine import BlockEvent, Completion, Engine, EngineConfig, EngineDeps, GenerationRequest, SamplingParams
from service.engine.drafting.costs import StepCosts
from service.engine.request import Sharing
from service.model import Checkpoint
from tests.engine.helpers import (
    CHEAP_ROWS,
    DEAR_ROWS,
    FREE_ROWS,
    SHAPES,
    CheckingRunner,
    audit,
    automatic,
    drafted,
    nodes_of,
    random_mode,
    random_requests,
    random_sampling,
    shaped,
    some_auto,
    verified,
)
from tests.reference import Reference
from tests.runners import engine_over
from tests.thinned import fast_rows
from tests.tiny import FAST_DLLM_NAME, GOLDEN_NAMES, I_DLM_NAME, golden

#: room for a few requests: tests that make many engines would else need gigabytes
SMALL = EngineConfig(kv_cache_tokens=4096)

#: of the golden checkpoints the one that the fast tests decode
FAST = GOLDEN_NAMES[1]
#: those whose drafts are compared with plain decoding
DRAFTED = (*GOLDEN_NAMES, FAST_DLLM_NAME)


@pytest.mark.parametrize(
    ("shape", "prefill_tokens", "more_rows", "deterministic"),
    [
        (0, 3, 9, False), (1, 1, 2, False), (2, 9, 0, False), (2, 13, 6, True), (3, 20, 12, False), (4, 6, 16, False),
        (5, 6, 3, False), (6, 9, 24, False), (0, 9, 2, False), (2, 4, 20, False), (3, 60, 5, False),
        (8, 9, 3, False), (8, 30, 12, False), (8, 5, 6, True),
        (9, 9, 3, False), (9, 30, 12, True), (10, 5, 0, False), (10, 20, 9, False),
    ],
)  # fmt: skip
def test_arrivals_limits_and_modes_are_decoded_as_without_cache_batch_or_chunks(
    shape: int, prefill_tokens: int, more_rows: int, deterministic: bool
) -> None:
    """Tokens, reasons, confidences and hidden states."""
    assert_as_plain(shape, 10 + shape, prefill_tokens, more_rows, deterministic, longest=16)


@pytest.mark.parametrize("shape", range(len(SHAPES)))
def test_pages_in_8_bits_are_decoded_as_without_cache_batch_or_chunks(shape: int) -> None:
    """By the reference that rounds all keys and values, those of the decoded block included."""
    assert_as_plain(shape, 40 + shape, 9, 6, deterministic=shape % 2 == 1, longest=16, kv_cache_dtype="int8")


@pytest.mark.slow
@settings(max_examples=160, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.integers(0, len(SHAPES) - 1), st.integers(0, 2**32), st.integers(1, 60), st.integers(0, 30), st.booleans())
def test_any_arrivals_limits_and_modes_are_decoded_as_without_cache_batch_or_chunks(
    shape: int, seed: int, prefill_tokens: int, more_rows: int, deterministic: bool
) -> None:
    assert_as_plain(shape, seed, prefill_tokens, more_rows, deterministic, longest=24)


def assert_as_plain(
    shape: int,
    seed: int,
    prefill_tokens: int,
    more_rows: int,
    deterministic: bool,
    longest: int,
    kv_cache_dtype: str = "auto",
) -> None:
    """Every forward against a recomputation of the whole sequence, every answer against the plain way to decode."""
    rng, checkpoint = random.Random(seed), shaped(shape)
    size, reference = checkpoint.config.block_size, Reference(checkpoint, kv_cache_dtype)
    requests = some_auto(rng, random_requests(rng, checkpoint, rng.randint(2, 5), longest))
    requests += related_requests(rng, reference, rng.randint(2, 4))
    most = max(len(request.prompt_token_ids) + request.max_new_tokens for request in requests)
    costs = rng.choice([FREE_ROWS, CHEAP_ROWS, DEAR_ROWS])
    engine, runner = engine_over(
        lambda usual: WriteOnce(usual, checkpoint, kv_cache_dtype),
        checkpoint,
        EngineDeps(costs=costs if checkpoint.mrp else StepCosts(costs.backbone)),
        max_rows=size + 2 + more_rows,
        max_running=rng.randint(1, 6),
        max_prefill_tokens=prefill_tokens,
        prefix_cache=rng.random() < 0.7,
        kv_cache_tokens=(-(-most // size) + rng.choice([0, 4, 500])) * size,
        deterministic=deterministic,
        kv_cache_dtype=kv_cache_dtype,
    )
    runner.engine = engine
    engine._scheduler._long_prefix = rng.choice([1, 2, 16])  # blocks from which on a request waits for another
    for request, events in in_turns(rng, engine, requests):
        causal = checkpoint.config.causal
        wanted = reference.generate(replace(request, mode=verified(request.mode, causal=causal)))
        done, tokens = events[-1], [event.token_ids for event in events]
        assert (sum(tokens, ()), done.finish_reason) == (wanted.token_ids, wanted.finish_reason)
        firsts = len(events) if causal else 0  # first tokens, which are also read beside other positions there
        assert done.stats.forwards.denoise + done.stats.forwards.verify <= wanted.denoise_forwards + firsts
    assert runner.compared > 0
    assert engine.state().kv_pages_used == 0


def related_requests(rng: random.Random, reference: Reference, count: int) -> list[GenerationRequest]:
    """Prompts made of few blocks, so that many begin alike; some go on where another's greedy answer ended."""
    size = reference.config.block_size
    requests: list[GenerationRequest] = []
    for number in range(count):
        prompt = tuple(
            rng.choice([3, 7]) * (offset + 1) % 60 for _ in range(rng.randint(0, 3)) for offset in range(size)
        )
        prompt += tuple(rng.choices(range(60), k=rng.randint(0 if prompt else 1, size)))
        if requests and rng.random() < 0.4:
            earlier = rng.choice(requests)
            prompt = (earlier.prompt_token_ids + reference.generate(earlier).token_ids)[:40]
        request = GenerationRequest(
            f"related {number}", prompt, random_mode(rng, reference.config), random_sampling(rng),
            rng.randint(1, 3 * size + 2),
            sharing=Sharing(cache_salt=rng.choice(["", "", "", "other"])),
        )  # fmt: skip
        requests.append(request)
    return requests


class WriteOnce(CheckingRunner):
    engine: Engine

    def evaluate(self, rows):
        shared = {node.page for node in nodes_of(self.engine._pages)}
        assert not shared & {row.pages[row.index] for row in rows if row.writes_kv}
        return super().evaluate(rows)

    def refine(self, rows):
        shared = {node.page for node in nodes_of(self.engine._pages)}
        assert not shared & {row.pages[row.index] for row in rows if row.writes_kv}
        return super().refine(rows)


def in_turns(
    rng: random.Random, engine: Engine, requests: Sequence[GenerationRequest]
) -> list[tuple[GenerationRequest, list[BlockEvent]]]:
    """The events of all requests that end. Requests come at any time, some are aborted, and pages stay counted."""
    waiting = list(reversed(requests))
    events: dict[str, list[BlockEvent]] = {request.request_id: [] for request in requests}
    while waiting or engine.has_work:
        while waiting and (rng.random() < 0.3 or not engine.has_work):
            engine.submit(waiting.pop())
        for event in engine.step():
            events[event.request_id].append(event)
        if rng.random() < 0.03:
            engine.abort(rng.choice(requests).request_id)
        audit(engine._pages, [running.lease for running in engine._scheduler.running])
    courses = [(request, events[request.request_id]) for request in requests]
    return [(request, course) for request, course in courses if course and course[-1].finish_reason is not None]


def pairs(seed: int, checkpoint: Checkpoint, temperature: float, count: int) -> list[GenerationRequest]:
    """Each request once in a mode that is a rule and once as speculative, and others of other modes between them."""
    rng = random.Random(seed)
    requests = []
    for number in range(count):
        prompt = tuple(rng.choices(range(500), k=rng.randint(1, 20)))
        sampling = random_sampling(rng, [temperature])
        plain = rng.choice(
            [Static(), Static(), Static(2), Dynamic(0.3), Sequential(), Sequential(1, 6.0), Entropy(6.0)]
        )
        source = GenerationRequest(f"plain {number}", prompt, plain, sampling, rng.randint(8, 24), frozenset([510]))
        other = replace(
            source, request_id=f"speculative {number}", mode=drafted(rng, plain, checkpoint.config.block_size)
        )
        if rng.random() < 0.4:
            other = replace(other, mode=automatic(other.mode))
        noise = replace(source, request_id=f"other {number}", mode=rng.choice([Direct(2), Dynamic(0.3), Remask(0.3)]))
        requests += [source, other, noise]
    rng.shuffle(requests)
    return requests


def assert_pairs(requests: list[GenerationRequest], done: list[Completion], count: int) -> int:
    by_id, saved = {completion.request_id: completion for completion in done}, 0
    for number in range(count):
        plain, speculative = by_id[f"plain {number}"], by_id[f"speculative {number}"]
        assert speculative.token_ids == plain.token_ids
        assert speculative.finish_reason == plain.finish_reason
        used = [
            completion.stats.forwards.denoise + completion.stats.forwards.verify for completion in (plain, speculative)
        ]
        assert used[1] <= used[0]
        saved += used[0] - used[1]
    return saved


@pytest.mark.parametrize(
    ("name", "temperature"),
    fast_rows(
        lambda name, temperature: (name in {FAST, FAST_DLLM_NAME}) == (temperature == 1.5) and name != GOLDEN_NAMES[2],
        [(name, temperature) for name in DRAFTED for temperature in (0.0, 0.01, 0.1, 0.7, 1.5)],
    ),
)
def test_speculative_is_what_it_verifies_at_any_temperature_in_any_batch(name: str, temperature: float) -> None:
    checkpoint = golden(name, torch.float64)
    requests = pairs(7, checkpoint, temperature, 6)
    for costs in (FREE_ROWS, CHEAP_ROWS, DEAR_ROWS):
        engine = Engine(checkpoint, EngineConfig(max_rows=48, kv_cache_tokens=2048), deps=EngineDeps(costs=costs))
        assert_pairs(requests, engine.generate(requests), 6)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("temperature", [0.0, 0.01, 0.05, 0.3, 0.7, 1.2, 1.5])
@pytest.mark.parametrize("name", DRAFTED)
def test_speculative_is_what_it_verifies_for_thousands_of_requests(name: str, temperature: float, seed: int) -> None:
    checkpoint = golden(name, torch.float64)
    requests = pairs(1000 + seed, checkpoint, temperature, 40)
    config = EngineConfig(max_rows=256, kv_cache_tokens=8192, draft_candidates=(0, 8)[seed % 2])
    deps = EngineDeps(costs=(FREE_ROWS, CHEAP_ROWS, DEAR_ROWS)[seed % 3])
    assert_pairs(requests, Engine(checkpoint, config, deps=deps).generate(requests), 40)


@pytest.mark.parametrize("name", [FAST, FAST_DLLM_NAME, I_DLM_NAME])
def test_a_continued_request_goes_on_as_if_nothing_had_happened(name: str) -> None:
    """What the ingress does when a replica dies: prompt + finished blocks, same seed."""
    checkpoint = golden(name, torch.float64)
    count = 5 * checkpoint.config.block_size + 1
    rules = Static(), Dynamic(0.3), Sequential(1, 3.0), Entropy(3.0), Speculative(0, 3)
    for mode in (*rules, Direct(2), Speculative(3), Remask(0.3)) if checkpoint.mrp else rules:
        sampling = SamplingParams(temperature=0.9, seed=3)
        whole = GenerationRequest("x", tuple(range(11)), mode, sampling, max_new_tokens=count)
        (done,) = Engine(checkpoint, SMALL).generate([whole])
        sent = done.blocks[0].token_ids + done.blocks[1].token_ids
        rest = replace(whole, prompt_token_ids=whole.prompt_token_ids + sent, max_new_tokens=count - len(sent))
        assert Engine(checkpoint, SMALL).generate([rest])[0].token_ids == done.token_ids[len(sent) :]
