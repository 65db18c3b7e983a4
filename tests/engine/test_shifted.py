"""Models whose outputs predict the next token: the forwards of first tokens, whole prompts in the cache, a refusal.

`test_exactness.py` compares their decodes with the reference, `test_golden.py` with the published loop.
"""

from dataclasses import replace

import pytest

from service.decode.block import MASKED
from service.decode.mode import ScoreMode
from service.decode.modes import Edit, Speculative, Static
from service.engine import Engine, EngineConfig, GenerationRequest, SamplingParams
from service.engine.request import ForwardCounts, LogprobsRequest
from service.errors import InvalidRequest
from service.model import Checkpoint
from tests.engine.helpers import FREE_ROWS, checked, request_of
from tests.tiny import FAST_DLLM, tiny_checkpoint

SIZE = 8


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    return tiny_checkpoint(3, **FAST_DLLM)


def test_the_forward_that_stores_a_block_gives_the_next_ones_first_token(checkpoint: Checkpoint) -> None:
    """Three blocks after a prompt of two: a forward for the prompt, seven for each block, two between them."""
    engine = Engine(checkpoint, EngineConfig(kv_cache_tokens=512))
    (done,) = engine.generate([request_of("x", range(2 * SIZE), tokens=3 * SIZE)])
    assert done.stats.forwards == ForwardCounts(prefill=1, denoise=21, commit=2)
    (done,) = engine.generate([request_of("y", range(2 * SIZE - 3), tokens=3 + SIZE)])
    assert done.stats.forwards == ForwardCounts(prefill=0, denoise=3 + 7, commit=1)


def test_tokens_of_a_forward_are_in_one_sub_block(checkpoint: Checkpoint) -> None:
    engine = Engine(checkpoint, EngineConfig(kv_cache_tokens=512))
    (done,) = engine.generate([request_of("x", range(SIZE), Static(SIZE), 2 * SIZE)])
    revealed = [sorted(pick.position for pick in step.revealed) for block in done.blocks for step in block.steps]
    assert revealed == [[0], [1, 2, 3], [4, 5, 6, 7]] * 2


@pytest.mark.undisturbed
@pytest.mark.parametrize("mode", [Static(), Speculative(2), Edit()])
def test_a_prompt_of_whole_blocks_in_the_cache_is_decoded_as_before(checkpoint: Checkpoint, mode) -> None:
    """Its last block is computed again, for its outputs."""
    engine, _ = checked(checkpoint, FREE_ROWS)
    requests = [request_of(name, range(3 * SIZE), mode, 2 * SIZE) for name in "xy"]
    (first,) = engine.generate(requests[:1])
    (second,) = engine.generate(requests[1:])
    assert second.token_ids == first.token_ids
    assert [block.steps for block in second.blocks] == [block.steps for block in first.blocks]
    assert (first.stats.cached_tokens, second.stats.cached_tokens) == (0, 3 * SIZE)
    assert second.stats.forwards.prefill == 1


def test_the_first_token_has_the_parameters_of_its_request(checkpoint: Checkpoint) -> None:
    """Log-probabilities, a bias and forbidden stop tokens at the position that the block before reads."""
    engine = Engine(checkpoint, EngineConfig(kv_cache_tokens=512))
    plain = request_of("x", range(SIZE), tokens=1, logprobs=LogprobsRequest(2, (5,)))
    (done,) = engine.generate([plain])
    first = done.blocks[0].steps[0].revealed[0]
    assert first.logprobs is not None
    likeliest, second = (token for token, _ in first.logprobs.top)
    assert (first.position, first.token, len(first.logprobs.by_id)) == (0, likeliest, 1)
    for sampling in (SamplingParams(min_tokens=1), SamplingParams(logit_bias={likeliest: -100.0})):
        stops = frozenset([likeliest]) if sampling.min_tokens else frozenset()
        (done,) = engine.generate([replace(plain, sampling=sampling, stop_token_ids=stops)])
        assert done.token_ids == (second,)


def test_a_score_of_the_first_token_is_refused(checkpoint: Checkpoint) -> None:
    engine = Engine(checkpoint)
    request = GenerationRequest("x", (MASKED, 2, MASKED, 4), ScoreMode(), max_new_tokens=0)
    with pytest.raises(InvalidRequest, match="the first token of a text cannot be scored"):
        engine.validate(request)
