"""Requests with several plans: each runs one of them, from its first token to its last."""

from dataclasses import replace

import pytest

from service.decode.modes import Direct, Dynamic, Remask, Speculative, Static
from service.engine import Engine, EngineConfig, GenerationRequest
from service.engine.request import MeasuredMode
from service.errors import ModeNotAvailable
from service.model import Checkpoint
from tests.engine.helpers import request_of
from tests.tiny import tiny_checkpoint

PLANS = tuple(MeasuredMode(mode, 1.5) for mode in (Speculative(), Dynamic(0.5), Direct(1), Remask(0.4)))


def requests(count: int) -> list[GenerationRequest]:
    """Every third request names its mode."""
    return [
        replace(request_of(str(number), [number + 1], Static(), 24), plans=PLANS if number % 3 else ())
        for number in range(count)
    ]


@pytest.mark.parametrize("prefix_cache", [False, True])
def test_an_answer_is_that_of_the_plan_that_it_names(checkpoint: Checkpoint, prefix_cache: bool) -> None:
    engine = Engine(checkpoint, EngineConfig(max_running=4, kv_cache_tokens=4096, prefix_cache=prefix_cache))
    done = engine.generate(requests(18))
    chosen = {completion.stats.mode for completion in done} - {None}
    assert len(chosen) > 1
    assert chosen <= {plan.mode for plan in PLANS}
    alone = Engine(checkpoint, EngineConfig(max_running=1, kv_cache_tokens=4096))
    for request, completion in zip(requests(18), done, strict=True):
        assert (completion.stats.mode is None) == (not request.plans)
        mode = completion.stats.mode or request.mode
        [expected] = alone.generate([replace(request, mode=mode, plans=())])
        assert (completion.token_ids, completion.finish_reason) == (expected.token_ids, expected.finish_reason)


def test_a_plan_that_the_checkpoint_cannot_serve_is_refused() -> None:
    engine = Engine(tiny_checkpoint(1, num_nextn_predict_layers=0), EngineConfig(kv_cache_tokens=4096))
    with pytest.raises(ModeNotAvailable, match="'direct' needs MRP"):
        engine.validate(replace(request_of("x", [1], Static(), 8), plans=PLANS))
