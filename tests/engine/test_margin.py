"""`speculative` with a margin in the engine: what it accepts, and what it leaves as it was for others."""

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from msgspec import structs

from service.constraints.constraint import Constraint
from service.decode.mode import RuleMode
from service.decode.modes import Dynamic, Sequential, Speculative, Static
from service.engine import Completion, Engine, EngineConfig, EngineDeps, GenerationRequest, SamplingParams
from service.engine.request import LogprobsRequest
from service.errors import InvalidRequest
from service.model import Checkpoint
from tests.constraints.checkpoints import DEMO, text_of
from tests.engine.constrained import check, constrained, engine_of
from tests.engine.helpers import CHEAP_ROWS, DEAR_ROWS, FREE_ROWS, checked, demo_problems
from tests.engine.test_golden import expected
from tests.engine.test_golden import requests as golden_requests
from tests.reference import Reference
from tests.thinned import fast_only
from tests.tiny import ALL_NAMES, GOLDEN_NAMES, golden

FAST = GOLDEN_NAMES[1]


def answers(engine: Engine, requests: Sequence[GenerationRequest], mode: Speculative | RuleMode) -> list[Completion]:
    return engine.generate([replace(request, mode=mode) for request in requests])


def drafting(checkpoint: Checkpoint) -> list[tuple[int, int | None]]:
    """MRP steps and states of chains and trees that the checkpoint can draft."""
    return [(0, 4), *([(2, None), (2, 4)] if checkpoint.mrp else [])]


# --- what is accepted ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL_NAMES)
def test_one_token_at_a_time_the_strictest_margin_gives_the_lossless_tokens(name: str) -> None:
    """The golden decodes of `static`, an independent implementation's, and those of `sequential`."""
    checkpoint = golden(name)
    static = [pair for pair in zip(expected(name), golden_requests(name), strict=True) if pair[1].mode == Static()]
    entries, requests = zip(*static, strict=True)
    engine = Engine(checkpoint, EngineConfig(kv_cache_tokens=4096))
    left = [completion.token_ids for completion in answers(engine, requests, Sequential())]
    assert len(requests) >= 3
    for steps, states in drafting(checkpoint):
        done = answers(engine, requests, Speculative(steps, states, margin=1.0))
        assert [list(completion.token_ids) for completion in done] == [entry["token_ids"] for entry in entries]
        sequential = answers(engine, requests, Speculative(steps, states, verify="sequential", margin=1.0))
        assert [completion.token_ids for completion in sequential] == left


def test_an_accepted_second_token_has_the_backbones_own_probability() -> None:
    """Every token of an answer stands with the probability that a verifying row gave it; some are second tokens."""
    engine, requests = demo_problems()
    lax = answers(engine, requests, Speculative(4, 4, margin=0.3, verify="sequential", entropy_bound=0.1))
    picks = [
        pick for completion in lax for block in completion.blocks for step in block.steps for pick in step.revealed
    ]
    second = [pick for pick in picks if pick.logprobs and pick.token != pick.logprobs.top[0][0]]
    assert second
    for pick in second:
        (_, first), (token, chance) = pick.logprobs.top
        assert pick.token == token
        assert chance - first > torch.tensor(0.3).log().item()
        assert pick.confidence == pytest.approx(torch.tensor(chance).exp().item())


# --- the same as alone, as uncached, as in another order ---------------------------------------------


def lax_requests(seed: int, checkpoint: Checkpoint, count: int) -> list[GenerationRequest]:
    """Requests with a margin, greedy and sampled, of any verified rule."""
    rng = random.Random(seed)
    requests = []
    for number in range(count):
        plain = rng.choice([Static(), Static(2), Dynamic(0.3), Sequential(), Sequential(1, 6.0)])
        steps, states = rng.choice([(0, 3), (0, 4), (2, None), (3, None), (2, 4), (1, 2)])
        mode = Speculative(
            steps, states, margin=rng.choice([0.2, 0.5, 0.8, 0.95]), verify=plain.name, **structs.asdict(plain)
        )
        sampling = SamplingParams(rng.choice([0, 0, 0.7, 1.2]), seed=rng.randrange(2**63))
        prompt = tuple(rng.choices(range(500), k=rng.randint(1, 20)))
        requests.append(
            GenerationRequest(f"lax {number}", prompt, mode, sampling, rng.randint(6, 24), frozenset([510]))
        )
    return requests


@pytest.mark.parametrize("name", fast_only(FAST.__eq__, GOLDEN_NAMES))
def test_a_margin_gives_what_the_plain_reference_gives_in_any_batch(name: str) -> None:
    checkpoint = golden(name, torch.float64)
    requests, reference = lax_requests(3, checkpoint, 20), Reference(checkpoint)
    strict = [replace(request, request_id=f"s{request.request_id}", mode=request.mode.plain) for request in requests]
    alone = Engine(checkpoint, EngineConfig(kv_cache_tokens=4096))
    mixed, _ = checked(checkpoint, CHEAP_ROWS, max_rows=48, kv_cache_tokens=4096)
    batch = [*requests, *strict]
    random.Random(1).shuffle(batch)
    together = {done.request_id: done for done in mixed.generate(batch)}
    differ = 0
    for request, plain in zip(requests, strict, strict=True):
        wanted = reference.generate(request)
        (done,) = alone.generate([request])
        assert done.token_ids == together[request.request_id].token_ids == wanted.token_ids
        assert together[plain.request_id].token_ids == reference.generate(plain).token_ids
        differ += done.token_ids != together[plain.request_id].token_ids
    assert differ >= 3, "the margins never decided"


def test_a_margin_adds_to_the_log_probabilities_that_a_request_wants() -> None:
    for wanted, read in ((None, (2, ())), (LogprobsRequest(1, (7,)), (2, (7,))), (LogprobsRequest(5), (5, ()))):
        assert GenerationRequest("x", (1,), logprobs=wanted).logprobs_with(2) == LogprobsRequest(*read)


# --- grammars --------------------------------------------------------------------------------------

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "count": {"type": "integer"}},
    "required": ["name", "count"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("name", fast_only((DEMO, FAST).__contains__, (DEMO, *GOLDEN_NAMES)))
def test_drafts_accepted_by_a_margin_satisfy_the_grammar(name: str) -> None:
    constraint, engine = Constraint.json(SCHEMA, "response_format"), engine_of(name, FREE_ROWS)
    rules = ({"verify": "sequential", "entropy_bound": 0.5}, {"tokens_per_step": 2}, {})
    changed = 0
    for rule in rules:
        requests = [
            constrained(name, f"{margin} {seed}", constraint, Speculative(2, 4, margin=margin, **rule),
                        SamplingParams(0.9 * (seed % 2), seed=seed), 80)
            for seed in range(2)
            for margin in (None, 0.1)
        ]  # fmt: skip
        made = engine.generate(requests)
        for completion in made:
            check(name, SCHEMA, completion)
        changed += sum(strict.token_ids != lax.token_ids for strict, lax in zip(made[::2], made[1::2], strict=True))
    assert changed, "the margin never decided"
    assert any(text_of(name, completion.token_ids).startswith("{") for completion in made)


# --- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize("sampling", [SamplingParams(0.7, top_p=0.9), SamplingParams(0.7, top_k=5)])
def test_with_filters_a_margin_is_not_defined(sampling: SamplingParams) -> None:
    engine = Engine(golden(FAST), EngineConfig(kv_cache_tokens=512))
    with pytest.raises(
        InvalidRequest, match=r"allowed with a margin are top_p 1, top_k 0 and min_p 0, or temperature 0"
    ) as caught:
        engine.submit(GenerationRequest("x", (1, 2), Speculative(2, margin=0.5), sampling))
    assert caught.value.param == "margin"
    greedy = structs.replace(sampling, temperature=0)
    engine.submit(GenerationRequest("greedy", (1, 2), Speculative(2, margin=0.5), greedy))
    engine.submit(GenerationRequest("strict", (1, 2), Speculative(2), sampling))


@pytest.mark.parametrize("costs", [FREE_ROWS, DEAR_ROWS])
def test_the_load_may_not_choose_the_answers_of_a_deterministic_engine(costs: object) -> None:
    request = GenerationRequest("x", (1, 2), Speculative("auto", margin=0.5), max_new_tokens=8)
    deps = EngineDeps(costs=costs)  # type: ignore[arg-type]
    fixed = Engine(golden(FAST), EngineConfig(kv_cache_tokens=512, deterministic=True), deps=deps)
    with pytest.raises(InvalidRequest, match=r"mrp_steps is 'auto', allowed with a margin is a number") as caught:
        fixed.submit(request)
    assert caught.value.param == "mrp_steps"
    fixed.submit(replace(request, request_id="named", mode=Speculative(2, margin=0.5)))
    free = Engine(golden(FAST), EngineConfig(kv_cache_tokens=512), deps=deps)
    assert len(free.generate([request])[0].token_ids) == 8
