"""Any valid requests together, on an engine with any limits: nothing fails, and nothing is left behind.

The normal run takes some seconds' worth; `-m slow` an hour's. Faults found by it are listed in dev/lab/reliability.md.
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass
from typing import Any

import pytest

from service.decode.registry import make_mode
from service.demo import CHECKPOINT
from service.engine import BlockEvent, Engine, EngineConfig, EngineDeps, GenerationRequest, SamplingParams
from service.engine.drafting.costs import StepCosts
from service.engine.request import Sharing
from service.model import Checkpoint
from tests.engine.helpers import CHEAP_ROWS, DEAR_ROWS, FREE_ROWS, audit
from tests.extremes import drawn_knobs, drawn_margin, drawn_prompt, drawn_sampling
from tests.tiny import GOLDEN_NAMES, golden

#: requests of one engine's life, few and many, and tokens of the longest
_FEW, _BATCH, _LONGEST = 12, 40, 96


def any_request(rng: random.Random, name: str, checkpoint: Checkpoint, longest: int) -> GenerationRequest:
    """A request that the documentation allows for this checkpoint, at most `longest` tokens in all."""
    config = checkpoint.config
    allowed = [token for token in range(config.vocab_size) if token != config.mask_token_id]
    knobs, sampling = drawn_knobs(rng, config.block_size), drawn_sampling(rng)
    knobs |= drawn_margin(rng, knobs | sampling)
    prompt = drawn_prompt(rng, allowed, longest - 1, config.block_size)
    room = longest - len(prompt)
    stops = frozenset(rng.choice([[], config.eos_token_ids, rng.sample(allowed, 5), allowed, [10**12]]))
    if len(stops) == len(allowed):
        sampling["min_tokens"] = 0
    sampling.get("logit_bias", {}).pop(config.mask_token_id, None)
    return GenerationRequest(
        name,
        tuple(prompt),
        make_mode(knobs.pop("mode"), knobs),
        SamplingParams(**sampling),
        max_new_tokens=rng.choice([1, room, rng.randint(1, room), rng.randint(1, min(room, 12))]),
        stop_token_ids=stops,
        timeout_s=rng.choice([None, None, None, None, 1e-9, 1e-3, 0.02, 1e9]),
        sharing=Sharing(
            priority=rng.randint(0, 9),
            tenant=rng.choice(["", "a", "b"]),
            tenant_share=rng.choice([1.0, 1.0, 0.01, 100.0]),
            cache_salt=rng.choice(["", "", "", "salt", "\0", "\ud83d\ude00"]),
        ),
        waited_s=rng.choice([0.0, 0.0, 1.0, 1e9]),
    )


@dataclass
class Workload:
    engine: Engine
    requests: list[GenerationRequest]

    @classmethod
    def drawn(cls, rng: random.Random, checkpoint: Checkpoint, count: int) -> Workload:
        size = checkpoint.config.block_size
        limits: dict[str, Any] = {
            "max_running": rng.choice([1, 3, 16, 64]),
            "max_rows": rng.choice([size + 2, 24, 64, 256]),
            "kv_cache_tokens": rng.choice([_LONGEST + size, 512, 8192]),
            "prefix_cache": rng.random() < 0.8,
            "deterministic": rng.random() < 0.1,
            "draft_candidates": rng.choice([0, 0, 1, 8, 32, None]),
        }
        costs: StepCosts = rng.choice([FREE_ROWS, FREE_ROWS, CHEAP_ROWS, DEAR_ROWS])
        engine = Engine(checkpoint, EngineConfig(**limits), deps=EngineDeps(costs=costs))
        longest = min(_LONGEST, engine.max_model_len)
        return cls(engine, [any_request(rng, f"r{number}", checkpoint, longest) for number in range(count)])

    def run(self, rng: random.Random) -> dict[str, list[BlockEvent]]:
        events: dict[str, list[BlockEvent]] = {request.request_id: [] for request in self.requests}
        coming = list(self.requests)
        while coming or self.engine.has_work:
            for _ in range(rng.randint(0, 6)):
                if coming:
                    self.engine.submit(coming.pop())
            if rng.random() < 0.01:
                self.engine.abort(rng.choice(self.requests).request_id)
            for event in self.engine.step():
                events[event.request_id].append(event)
        return events


def survived(seed: int, checkpoint: Checkpoint, count: int) -> int:
    rng = random.Random(seed)
    workload = Workload.drawn(rng, checkpoint, count)
    events = workload.run(rng)
    answered = 0
    for request in workload.requests:
        answered += _right(request, events[request.request_id], checkpoint)
    assert workload.engine.state().kv_pages_used == 0
    audit(workload.engine._pages, [])
    return answered


def _right(request: GenerationRequest, events: list[BlockEvent], checkpoint: Checkpoint) -> bool:
    if not events or events[-1].finish_reason is None:  # aborted: its last event goes to the observer alone
        return False
    assert [event.error for event in events if event.error is not None] == []
    tokens = [token for event in events for token in event.token_ids]
    assert len(tokens) <= request.max_new_tokens
    assert all(0 <= token < checkpoint.config.vocab_size for token in tokens)
    assert checkpoint.config.mask_token_id not in tokens
    assert request.stop_token_ids.isdisjoint(tokens)
    reason = events[-1].finish_reason
    assert (reason == "length") == (len(tokens) == request.max_new_tokens) or reason in {"stop", "timeout", "abort"}
    assert all(event.finish_reason is None for event in events[:-1])
    return True


@pytest.mark.parametrize("name", [GOLDEN_NAMES[1], str(CHECKPOINT)], ids=["golden", "demo"])
def test_no_valid_request_ends_anything(name: str) -> None:
    assert sum(survived(seed, golden(name), _FEW) for seed in range(3)) > 0.7 * 3 * _FEW


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", [*GOLDEN_NAMES, str(CHECKPOINT)], ids=[*GOLDEN_NAMES, "demo"])
def test_no_valid_request_of_thousands_ends_anything(name: str) -> None:
    """20,000 requests over four checkpoints; MRP_FUZZ_SEED draws others."""
    first = int(os.environ.get("MRP_FUZZ_SEED", "1000"))
    workloads = 5000 // _BATCH
    answered = sum(survived(first + number, golden(name), _BATCH) for number in range(workloads))
    assert answered > 0.9 * workloads * _BATCH
