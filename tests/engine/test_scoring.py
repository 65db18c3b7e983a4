"""Places of a pinned text, read by the engine: the numbers of one plain forward over the whole text."""

import random
from dataclasses import replace

import pytest
import torch

from service.decode.block import MASKED
from service.decode.mode import ScoreMode
from service.decode.modes import Speculative, Static
from service.engine import BlockEvent, Engine, EngineConfig, EngineDeps, GenerationRequest
from service.engine.request import LogprobsRequest
from service.errors import InvalidRequest, PromptTooLong
from service.model import Checkpoint
from tests.engine.helpers import CHEAP_ROWS, events_of
from tests.reference import block_causal_mask, dense_attention
from tests.thinned import fast_rows
from tests.tiny import EXPERTS_NAME, FAST_DLLM_NAME, GOLDEN_NAMES, I_DLM_NAME, golden

LABELS = (5, 17, 300)


@torch.inference_mode()
def plain(model: Checkpoint, prompt: tuple[int, ...]) -> dict[int, torch.Tensor]:
    """Place -> log-probabilities `[V]`, by one forward over the whole text with a dense mask."""
    size = model.config.block_size
    length = -(-len(prompt) // size) * size
    tokens = torch.full((1, length), model.config.mask_token_id)
    tokens[0, : len(prompt)] = torch.tensor([model.config.mask_token_id if t == MASKED else t for t in prompt])
    attend = dense_attention(block_causal_mask(length, 1 if model.config.causal else size))
    hidden = model.backbone(tokens, torch.arange(length)[None], attend, False)
    outputs = hidden[0].roll(1, 0) if model.config.shifted else hidden[0]
    scores = model.backbone.logits(outputs).float().log_softmax(-1)
    return {position: scores[position] for position, token in enumerate(prompt) if token == MASKED}


def read(
    name: str, prompt: tuple[int, ...], labels: tuple[int, ...] = LABELS, likeliest: int = 20
) -> GenerationRequest:
    return GenerationRequest(name, prompt, ScoreMode(), max_new_tokens=0, logprobs=LogprobsRequest(likeliest, labels))


def pinned(rng: random.Random, length: int, count: int) -> tuple[int, ...]:
    marked = set(rng.sample(range(length), count))
    return tuple(MASKED if position in marked else rng.randrange(500) for position in range(length))


def check(model: Checkpoint, request: GenerationRequest, events: list[BlockEvent]) -> None:
    expected = plain(model, request.prompt_token_ids)
    [event] = events
    assert event.finish_reason == "stop"
    assert [position for position, _ in event.position_logprobs] == list(expected)
    for position, logprobs in event.position_logprobs:
        scores = expected[position].clone()
        assert logprobs.by_id == pytest.approx(scores[list(LABELS)].tolist(), abs=1e-4)
        scores[model.config.mask_token_id] = -torch.inf
        best = scores.topk(20)
        assert [score for _, score in logprobs.top] == pytest.approx(best.values.tolist(), abs=1e-4)
        assert logprobs.top[0][0] == best.indices[0]


CONFIGS = [(name, EngineConfig()) for name in (*GOLDEN_NAMES, EXPERTS_NAME, FAST_DLLM_NAME, I_DLM_NAME)]
CONFIGS += [(GOLDEN_NAMES[0], EngineConfig(deterministic=True)), (GOLDEN_NAMES[0], EngineConfig(async_scheduling=True))]


@pytest.mark.parametrize(
    ("name", "config"),
    fast_rows(
        lambda name, config: name in {EXPERTS_NAME, FAST_DLLM_NAME, I_DLM_NAME} or config != EngineConfig(), CONFIGS
    ),
)
def test_reads_equal_a_full_recompute_beside_other_requests(name: str, config: EngineConfig) -> None:
    """Places anywhere, in one block or in several, in a batch with answers of other modes."""
    model, rng = golden(name), random.Random(3)
    engine = Engine(model, config, deps=EngineDeps(costs=CHEAP_ROWS))
    lengths = [(1, 1), (3, 1), (8, 2), (9, 1), (21, 3), (64, 1), (70, 9)]
    reads = [read(f"r{number}", pinned(rng, *shape)) for number, shape in enumerate(lengths)]
    if model.config.shifted:  # first tokens cannot be read; places at the beginning of a block, and behind a whole one
        reads = [replace(request, prompt_token_ids=(7, *request.prompt_token_ids)) for request in reads]
        texts = [(32, 3), (32, 33), (31, 32, 64), (63, 64, 65)]
        reads += [
            read(f"s{marked}", tuple(MASKED if index in marked else index for index in range(max(marked) + 1)))
            for marked in texts
        ]
    reads.append(read("behind", (*pinned(rng, 12, 0), MASKED)))
    prompt = tuple(rng.randrange(500) for _ in range(11))
    answers = [
        GenerationRequest(mode.name, prompt, mode, max_new_tokens=24)
        for mode in (Static(), Speculative(mrp_steps=0, max_drafts=3))
    ]
    events = events_of(engine, [*answers, *reads])
    for request in reads:
        check(model, request, events[request.request_id])
    alone = Engine(model, config, deps=EngineDeps(costs=CHEAP_ROWS)).generate(answers)
    decoded = [sum((event.token_ids for event in events[answer.request_id]), ()) for answer in answers]
    assert decoded == [answer.token_ids for answer in alone]
    assert engine.state().num_running == 0


def test_scoring_takes_one_forward_and_its_prefix_is_cached() -> None:
    """All blocks with places are in one forward with the prompt; blocks with masks are never shared."""
    model = golden(GOLDEN_NAMES[0])
    size = model.config.block_size
    engine = Engine(model, deps=EngineDeps(costs=CHEAP_ROWS))
    lead = tuple(range(1, 2 * size + 1))
    request = read("a", (*lead, MASKED, *range(2 * size - 1), MASKED, 7))
    [first] = events_of(engine, [request])["a"]
    assert (first.stats.forwards.prefill, first.stats.forwards.denoise) == (1, 1)
    [second] = events_of(engine, [request])["a"]
    assert (second.stats.cached_tokens, second.stats.forwards.prefill) == (2 * size, 0)
    assert second.position_logprobs == first.position_logprobs
    check(model, request, [second])
    state = engine.state()
    assert (state.num_running, state.kv_pages_used) == (0, 0)


def test_a_long_way_between_two_places_takes_several_forwards() -> None:
    model = golden(GOLDEN_NAMES[0])
    size = model.config.block_size
    engine = Engine(model, EngineConfig(max_rows=size + 2), deps=EngineDeps(costs=CHEAP_ROWS))
    request = read("a", (MASKED, *[9] * (4 * size * size), MASKED))
    events = events_of(engine, [request])["a"]
    assert events[0].stats.forwards.denoise > 1
    check(model, request, events)


def test_invalid_scoring_is_refused_and_scoring_can_be_aborted() -> None:
    model = golden(GOLDEN_NAMES[0])
    engine = Engine(model, EngineConfig(max_model_len=64), deps=EngineDeps(costs=CHEAP_ROWS))
    for prompt, error in [((1, 2), InvalidRequest), ((600, MASKED), InvalidRequest), ((MASKED,) * 65, PromptTooLong)]:
        with pytest.raises(error):
            engine.submit(read("a", prompt))
    engine.submit(read("a", (1, MASKED)))
    engine.start_queued()
    engine.abort("a")
    assert not engine.has_work
    assert engine.state().kv_pages_used == 0
