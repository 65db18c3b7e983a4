"""LLaDA2 without MRP: every mode that needs none, with blocks of 32, beside each other in one batch."""

from dataclasses import replace

import pytest
import torch
from msgspec import structs

from service.decode.mode import RuleMode
from service.decode.modes import Dynamic, Entropy, Sequential, Speculative, Static
from service.engine import GenerationRequest, SamplingParams
from service.engine.drafting.costs import StepCosts
from service.model import Checkpoint
from tests.engine.helpers import CHEAP_ROWS, checked, request_of
from tests.tiny import LLADA2, tiny_checkpoint

RULES: tuple[RuleMode, ...] = (*(Static(1), Static(5), Dynamic(0.1), Sequential(), Sequential(1, 6.0), Entropy(6.0)),)


@pytest.fixture(scope="module", params=[0, 4], ids=["groups", "pool"])
def checkpoint(request: pytest.FixtureRequest) -> Checkpoint:
    return tiny_checkpoint(3, **LLADA2, expert_capacity=request.param)


def requests() -> list[GenerationRequest]:
    generations = []
    for number, rule in enumerate(RULES):
        prompt = torch.randint(0, 60, (7 + 9 * number,), generator=torch.Generator().manual_seed(number)).tolist()
        plain = request_of(
            f"{number} plain", prompt, rule, 26, sampling=SamplingParams(0.7 * (number % 2), seed=number)
        )
        for name, steps, drafts in (("tree", 0, 6), ("auto", "auto", None)):
            drafted = Speculative(steps, drafts, verify=rule.name, **structs.asdict(rule))
            generations.append(replace(plain, request_id=f"{number} {name}", mode=drafted))
        generations.append(plain)
    return generations


def test_every_mode_is_a_full_recomputation_in_a_batch_and_drafts_change_nothing(checkpoint: Checkpoint) -> None:
    engine, runner = checked(checkpoint, StepCosts(CHEAP_ROWS.backbone), max_rows=90, kv_cache_tokens=2048)
    done = {completion.request_id: completion for completion in engine.generate(requests())}
    saved = 0
    for number in range(len(RULES)):
        plain, *drafted = (done[f"{number} {name}"] for name in ("plain", "tree", "auto"))
        for completion in drafted:
            assert (completion.token_ids, completion.finish_reason) == (plain.token_ids, plain.finish_reason)
            used = [part.stats.forwards.denoise + part.stats.forwards.verify for part in (plain, completion)]
            saved += used[0] - used[1]
    assert runner.compared > 100
    assert saved > 0
