"""Feed-forwards with experts: against transformers' Qwen3-MoE, and each way to compute them against the other."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from service.model import Checkpoint, published_weights
from service.model.config import ExpertsConfig
from service.model.experts import SparseFeedForward, _grouped
from tests.reference import Reference, block_causal_mask
from tests.tiny import EXPERTS, tiny_checkpoint


def qwen3_moe(checkpoint: Checkpoint) -> Qwen3MoeForCausalLM:
    """transformers' model with the same weights."""
    keys = {key: value for key, value in checkpoint.raw.items() if key not in ("model_type", "architectures")}
    model = Qwen3MoeForCausalLM(Qwen3MoeConfig(**keys, attn_implementation="eager")).to(checkpoint.dtype).eval()
    weights = published_weights(checkpoint.config, checkpoint.backbone, None, model.state_dict().keys())
    if checkpoint.config.tie_word_embeddings:
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    model.load_state_dict(weights)
    return model


@settings(max_examples=20)
@given(
    experts=st.integers(1, 9),
    per_token=st.integers(1, 4),
    normalized=st.booleans(),
    layers=st.integers(1, 3),
    dense=st.sets(st.integers(0, 2)),
    step=st.integers(1, 2),
    tied=st.booleans(),
    length=st.integers(1, 24),
)
@torch.inference_mode()
def test_the_backbone_is_transformers_qwen3_moe_with_a_block_causal_mask(
    experts: int, per_token: int, normalized: bool, layers: int, dense: set[int], step: int, tied: bool, length: int
) -> None:
    given_keys = EXPERTS | {
        "num_experts": experts, "num_experts_per_tok": min(per_token, experts), "norm_topk_prob": normalized,
        "num_hidden_layers": layers, "mlp_only_layers": sorted(dense), "decoder_sparse_step": step,
        "tie_word_embeddings": tied, "num_nextn_predict_layers": 0,
    }  # fmt: skip
    checkpoint = tiny_checkpoint(experts, torch.float32, **given_keys)
    tokens = torch.randint(0, 60, (1, length), generator=torch.Generator().manual_seed(length))
    mask = torch.zeros(1, 1, length, length).masked_fill(~block_causal_mask(length, 4), torch.finfo(torch.float32).min)
    theirs = qwen3_moe(checkpoint)(tokens, attention_mask=mask, use_cache=False).logits[0]
    ours = checkpoint.backbone.logits(Reference(checkpoint).hidden(tokens[0].tolist()))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-4)


def layer(dtype: torch.dtype = torch.float32, number: int = 16) -> SparseFeedForward:
    torch.manual_seed(0)
    config = ExpertsConfig(number, 3, 40, frozenset({0}), normalized=True)
    return SparseFeedForward(48, config).to(dtype).requires_grad_(False)


@pytest.mark.parametrize("tokens", [1, 3, 64])
def test_both_ways_to_group_tokens_agree(tokens: int) -> None:
    mlp, x = layer(torch.float64), torch.randn(1, tokens, 48, dtype=torch.float64)
    torch.testing.assert_close(mlp(x, True), mlp(x, False), rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_in_fixed_shapes_no_bit_of_a_token_depends_on_the_others(dtype: torch.dtype) -> None:
    """At any place among 15 others."""
    mlp, rng = layer(dtype), torch.Generator().manual_seed(1)
    companions, vector = torch.randn(60, 16, 48, generator=rng).to(dtype), torch.randn(48, generator=rng).to(dtype)
    for number, x in enumerate(companions):
        x[number % 16] = vector
    first, *more = (mlp(x[None], True)[0, number % 16] for number, x in enumerate(companions))
    assert all(torch.equal(answer, first) for answer in more)


def test_only_experts_that_have_tokens_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    mlp, rows = layer(number=64), list[int]()

    def counted(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        rows.append(len(x))
        return x @ weight.T

    monkeypatch.setattr(F, "linear", counted)
    chosen = torch.tensor([[3, 9, 60], [9, 3, 7]])
    assert mlp.experts(torch.randn(2, 48), chosen, False).shape == (2, 3, 48)
    assert rows == [2, 1, 2, 1] * 2


@pytest.mark.skipif(not hasattr(F, "grouped_mm"), reason="this torch has no grouped product, so CUDA gets ours, too")
def test_torchs_grouped_product_is_meant_as_ours() -> None:
    """The call that CUDA gets, on the CPU."""
    rows, matrices = torch.randn(10, 16), torch.randn(4, 24, 16)
    ends = torch.tensor([3, 3, 8, 10], dtype=torch.int32)
    theirs = F.grouped_mm(rows.bfloat16(), matrices.bfloat16().transpose(1, 2), offs=ends)
    ours = _grouped(rows.bfloat16(), matrices.bfloat16(), ends)
    torch.testing.assert_close(theirs, ours, rtol=0.02, atol=0.1)
