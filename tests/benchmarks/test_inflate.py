"""A small checkpoint in a larger shape: the same logits, and the same tokens in every mode."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.inflated import InflatedWeights, inflate
from benchmarks.shapes import SHAPES, Shape
from service.decode.modes import Direct, Dynamic, Entropy, Remask, Sequential, Speculative, Static
from service.engine import Engine, EngineConfig, EngineDeps, GenerationRequest, SamplingParams
from service.engine.drafting.planner import DRAFTS
from service.errors import InvalidRequest
from service.model import LoadOptions, load_checkpoint, published_weights, save_checkpoint
from service.model.attention import PagedCache, attention_backend
from service.model.checkpoint import build_checkpoint
from tests.engine.helpers import FREE_ROWS
from tests.plans import use_plan
from tests.tiny import (
    DIFFCODER,
    DIFFCODER_NAME,
    EXPERTS,
    FAST_DLLM,
    FAST_DLLM_NAME,
    GOLDEN,
    GOLDEN_NAMES,
    tiny_checkpoint,
)

MODES = (
    *(Static(), Static(3), Dynamic(0.5), Sequential(), Sequential(1, 0.1), Entropy(0.3)),
    *(Direct(2), Remask(0.5), Speculative(4), Speculative(0, 8), Speculative(2, 8), Speculative("auto")),
)


class Weights:
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
    weights = InflatedWeights(checkpoint.raw, Weights(checkpoint), shape, options)
    return build_checkpoint(checkpoint.path, weights.raw, weights, options)


class FinalRow:
    """A row of one sequence, whose block is final."""

    writes_kv = True

    def __init__(self, pages, index):
        self.pages, self.index = pages, index


def logits(checkpoint, tokens):
    """Of the backbone and of MRP behind it, over some blocks `[R, L]`."""
    pages = list(range(len(tokens)))
    attention = attention_backend(PagedCache(checkpoint.config, len(tokens), checkpoint.device, checkpoint.dtype))
    attend = attention.prepare([FinalRow(pages, index) for index in pages])
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
    changes = {
        **draw(st.sampled_from(({}, DIFFCODER, FAST_DLLM))),
        "tie_word_embeddings": tied,
        "mrp_residual": residual,
    }
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
    tokens = torch.randint(0, 64, (3, config.block_size), generator=torch.Generator().manual_seed(seed))
    with torch.inference_mode():
        expected, other = logits(small, tokens), logits(large, tokens)
    assert other.shape[-1] == shape.vocab_size
    torch.testing.assert_close(other[..., :64], expected, rtol=1e-4, atol=1e-3)
    padded = other[..., 64:].flatten(0, 2)
    if padded.numel():
        assert (padded.amax(-1) < expected.flatten(0, 2).amin(-1) - 20).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_padded_tokens_lose_in_every_dtype(dtype, tmp_path):
    small = tiny_checkpoint(3, torch.float32)
    save_checkpoint(tmp_path, small.raw, small.backbone, small.mrp)
    large = inflate(tmp_path, Shape(128, 64, 4, 8, 4, 32, 200, 512), LoadOptions(dtype=dtype))
    assert large.dtype == dtype
    with torch.inference_mode():
        padded = logits(large, torch.arange(60).view(-1, 4))
    assert padded.isfinite()[..., :64].all()
    assert (padded.argmax(-1) < 64).all()


# --- tokens of every mode ----------------------------------------------------------------------------------

#: larger than the golden checkpoint, by no power of two
LARGER = Shape(328, 500, 5, 16, 4, 32, 1500, 2048)


def engine_of(checkpoint):
    return Engine(checkpoint, EngineConfig(kv_cache_tokens=8192), deps=EngineDeps(costs=FREE_ROWS))


def answers(engine, prompts, new_tokens, stops=frozenset()):
    """The tokens and forwards of every mode, in turn greedy and sampled, all together."""
    requests = [
        GenerationRequest(
            f"{mode} {number}", prompt, mode, SamplingParams((0.0, 0.8)[(number + index) % 2], seed=number), new_tokens,
            stops,
        )
        for number, prompt in enumerate(prompts)
        for index, mode in enumerate(MODES)
    ]  # fmt: skip
    return {answer.request_id: (answer.token_ids, answer.stats.forwards) for answer in engine.generate(requests)}


@pytest.mark.parametrize("name", [GOLDEN_NAMES[0], DIFFCODER_NAME, FAST_DLLM_NAME])
def test_tokens_and_forwards_are_the_small_checkpoints_in_every_mode(name, monkeypatch):
    use_plan(monkeypatch, DRAFTS)
    options = LoadOptions(block_size=8)
    expected = answers(engine_of(load_checkpoint(GOLDEN / name, options)), [(3, 7, 9, 11, 13)], 20)
    large = engine_of(inflate(GOLDEN / name, LARGER, options))
    assert len(expected) == len(MODES)
    assert large.model.num_layers == 5
    assert answers(large, [(3, 7, 9, 11, 13)], 20) == expected


# --- refusals ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": 32}, "hidden_size is 32, this checkpoint needs at least 33"),
        ({"num_attention_heads": 2}, "num_key_value_heads is 2, this checkpoint needs at least 4"),
        ({"head_dim": 24}, "head_dim is 24, this checkpoint needs a multiple of 16"),
    ],
)
def test_a_shape_that_is_too_small_is_refused(changes, message):
    shape = replace(Shape(40, 60, 3, 4, 2, 32, 70, 256), **changes)
    with pytest.raises(InvalidRequest, match=message):
        inflated(tiny_checkpoint(), shape)


def test_experts_are_refused_on_both_sides():
    with pytest.raises(InvalidRequest, match="a model with experts cannot be inflated"):
        inflated(tiny_checkpoint(**EXPERTS), LARGER)
    with pytest.raises(InvalidRequest, match="nor be the shape"):
        inflated(tiny_checkpoint(), SHAPES["sdar-30b-a3b"])


def test_a_shape_of_another_family_is_refused():
    with pytest.raises(InvalidRequest, match="the shape is of another family"):
        inflated(tiny_checkpoint(), SHAPES["stable-diffcoder-8b"])
    with pytest.raises(InvalidRequest, match="the shape is of another family"):
        inflated(tiny_checkpoint(**FAST_DLLM), SHAPES["stable-diffcoder-8b"])
