"""A small checkpoint in a larger shape: the same logits, and on the demo the same tokens in every mode."""

from dataclasses import replace
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.inflated import InflatedWeights, inflate
from benchmarks.shapes import ExpertsShape, Llada2Shape, Shape
from service.decode.modes import Direct, Dynamic, Entropy, Remask, Sequential, Speculative, Static
from service.demo import CHECKPOINT, heldout_problems
from service.engine import Engine, EngineConfig, EngineDeps, GenerationRequest, SamplingParams
from service.errors import InvalidRequest
from service.model import LoadOptions, load_checkpoint, published_weights, save_checkpoint
from service.model.attention import PagedCache, attention_backend
from service.model.checkpoint import build_checkpoint
from service.text import TextCodec
from tests.engine.helpers import FREE
from tests.tiny import EXPERTS, tiny_checkpoint

#: no size is a power of two of the demo's, and there are four times as many heads
SHAPE = Shape(328, 500, 30, 16, 4, 64, 1500, 2048)
EXPERTS_SHAPE = ExpertsShape(
    160, 400, 29, 4, 2, 32, 1100, 2048, num_experts=5, num_experts_per_tok=2, moe_intermediate_size=390
)
LLADA2_SHAPE = Llada2Shape(
    160, 400, 29, 4, 2, 64, 1100, 2048, num_experts=8, num_experts_per_tok=2, n_group=4, topk_group=2,
    moe_intermediate_size=390,
)  # fmt: skip
MODES = (
    *(Static(), Static(3), Dynamic(0.5), Sequential(), Sequential(1, 0.1), Entropy(0.3)),
    *(Direct(2), Remask(0.5), Speculative(4), Speculative(0, 8), Speculative(2, 8), Speculative("auto")),
)


class Held:
    """The weights of a checkpoint in memory, as a source."""

    def __init__(self, checkpoint):
        self.weights = published_weights(checkpoint.config, checkpoint.backbone, checkpoint.mrp)

    @property
    def names(self):
        return self.weights.keys()

    def read(self, name):
        return self.weights[name]


def inflated(checkpoint, shape, dtype=torch.float64):
    options = LoadOptions(dtype=dtype)
    weights = InflatedWeights(checkpoint.raw, Held(checkpoint), shape, options)
    return build_checkpoint(checkpoint.path, weights.raw, weights, options)


class Places:
    """Rows of one sequence, each block final."""

    writes_kv = True

    def __init__(self, pages, index):
        self.pages, self.index = pages, index


def logits(checkpoint, tokens):
    """Of the backbone and of MRP behind it, over some blocks `[R, L]`."""
    pages = list(range(len(tokens)))
    attention = attention_backend(PagedCache(checkpoint.config, len(tokens), checkpoint.device, checkpoint.dtype))
    attend = attention.prepare([Places(pages, index) for index in pages])
    tokens = tokens[list(attend.order)]
    positions = torch.tensor(list(attend.order))[:, None] * tokens.shape[1] + torch.arange(tokens.shape[1])
    backbone, mrp = checkpoint.backbone, checkpoint.mrp
    hidden = backbone(tokens, positions, attend)
    changed = mrp(backbone.embed(tokens), hidden, backbone.rotation(positions), attend)
    return torch.stack([backbone.logits(hidden), backbone.logits(changed)])


@given(data=st.data())
@settings(max_examples=15, deadline=None)
def test_logits_agree_in_any_shape(data):
    """A large epsilon, so that one that is not scaled along would be seen."""
    draw = data.draw
    residual, tied = draw(st.booleans()), draw(st.booleans())
    seed, head_dim, eps = draw(st.integers(0, 9)), draw(st.sampled_from((4, 6, 16))), draw(st.sampled_from((1e-6, 0.1)))
    changes = {"tie_word_embeddings": tied, "mrp_residual": residual}
    small = tiny_checkpoint(seed, head_dim=head_dim, rms_norm_eps=eps, **changes)
    config = small.config
    group = draw(st.integers(1, 4))
    copies = -(-2 // group)
    kv_heads = draw(st.integers(2 * copies, 6))
    shape = Shape(
        config.hidden_size + draw(st.integers(1, 50)), 48 + draw(st.integers(0, 40)), draw(st.integers(2, 4)),
        kv_heads * group, kv_heads, config.head_dim * draw(st.integers(1, 4)), 64 + draw(st.integers(0, 30)), 300,
    )  # fmt: skip
    large = inflated(small, shape)
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    tokens = torch.randint(0, 64, (3, config.block_size), generator=generator)
    with torch.inference_mode():
        own, other = logits(small, tokens), logits(large, tokens)
    assert other.shape[-1] == shape.vocab_size
    torch.testing.assert_close(other[..., :64], own, rtol=1e-4, atol=1e-3)
    padded = other[..., 64:].flatten(0, 2)
    if padded.numel():
        assert (padded.amax(-1) < own.flatten(0, 2).amin(-1) - 20).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": 32}, "hidden_size is 32, this checkpoint needs at least 33"),
        ({"intermediate_size": 40}, "intermediate_size is 40, this checkpoint needs at least 48"),
        ({"num_hidden_layers": 1}, "num_hidden_layers is 1, this checkpoint needs at least 2"),
        ({"vocab_size": 62}, "vocab_size is 62, this checkpoint needs at least 64"),
        ({"num_attention_heads": 2}, "num_key_value_heads is 2, this checkpoint needs at least 4"),
        ({"head_dim": 24}, "head_dim is 24, this checkpoint needs a multiple of 16"),
    ],
)
def test_a_shape_that_is_too_small_is_refused(changes, message):
    shape = replace(Shape(40, 60, 3, 4, 2, 32, 70, 256), **changes)
    with pytest.raises(InvalidRequest, match=message):
        inflated(tiny_checkpoint(), shape)


def test_a_shape_of_the_same_vocabulary_needs_no_dimension_more():
    small = tiny_checkpoint()
    large = inflated(small, Shape(32, 48, 2, 4, 2, 16, 64, 256))
    assert torch.equal(large.backbone.lm_head.weight, small.backbone.lm_head.weight.float().double())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_padded_tokens_lose_in_every_dtype(dtype, tmp_path):
    small = tiny_checkpoint(3, torch.float32)
    save_checkpoint(tmp_path, small.raw, small.backbone, small.mrp)
    large = inflate(tmp_path, Shape(128, 64, 4, 8, 4, 32, 200, 512), LoadOptions(dtype=dtype))
    assert large.dtype == dtype
    with torch.inference_mode():
        found = logits(large, torch.arange(60).view(-1, 4))
    assert found.isfinite()[..., :64].all()
    assert (found.argmax(-1) < 64).all()


def engine_of(checkpoint):
    return Engine(checkpoint, EngineConfig(kv_cache_tokens=8192), deps=EngineDeps(costs=FREE))


def engine_in(shape):
    return engine_of(inflate(CHECKPOINT, shape, LoadOptions()))


@cache
def demos_answers():
    """To one problem."""
    return answers(engine_of(load_checkpoint(CHECKPOINT)), 1)


def answers(engine, count):
    """Of every mode, in turn greedy and sampled, all together."""
    codec, stops = TextCodec.load(CHECKPOINT), frozenset(engine.model.eos_token_ids)
    requests = [
        GenerationRequest(
            f"{problem.prompt} {params} {number}",
            tuple(codec.encode_chat([{"role": "user", "content": problem.prompt}])),
            params, SamplingParams((0.0, 0.8)[(number + place) % 2], seed=number), 96, stops,
        )
        for number, problem in enumerate(heldout_problems(count, seed=3))
        for place, params in enumerate(MODES)
    ]  # fmt: skip
    return {one.request_id: (one.token_ids, one.stats.forwards) for one in engine.generate(requests)}


def test_tokens_and_forwards_are_the_demos_in_every_mode():
    assert len(demos_answers()) == len(MODES)
    assert answers(engine_in(SHAPE), 1) == demos_answers()


def test_experts_give_the_demos_tokens_too():
    large = engine_in(EXPERTS_SHAPE)
    assert large.model.experts.num_experts == 5
    assert answers(large, 1) == demos_answers()


def test_another_familys_names_router_and_rotation_give_the_demos_tokens_too():
    large = engine_in(LLADA2_SHAPE)
    assert (large.model.family, large.model.rotary_dim) == ("llada2_moe", 32)
    assert answers(large, 1) == demos_answers()


def test_a_shape_whose_heads_are_rotated_too_little_is_refused():
    with pytest.raises(InvalidRequest, match="rotated part of a head is 8, this checkpoint needs a multiple of 16"):
        inflated(tiny_checkpoint(), replace(LLADA2_SHAPE, head_dim=16))


def test_a_checkpoint_with_experts_is_refused():
    with pytest.raises(InvalidRequest, match="a checkpoint with experts cannot be inflated"):
        inflated(tiny_checkpoint(**EXPERTS), SHAPE)


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_tokens_are_the_demos_on_200_problems():
    expected, found = answers(engine_of(load_checkpoint(CHECKPOINT)), 200), answers(engine_in(SHAPE), 200)
    different = [name for name in expected if found[name][0] != expected[name][0]]
    print(f"\ninflated = demo in {len(expected) - len(different)} of {len(expected)}; differing: {different}")  # noqa: T201
    assert not different
