"""LLaDA2's layers, router, config and files, against a network that is written from its definition."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor

from service.errors import CheckpointError
from service.model import LoadOptions, load_checkpoint, parse_config, published_weights
from service.model.config import ExpertsConfig, GroupsConfig, PoolConfig, Shard
from tests.llada2 import PlainLlada2
from tests.model.test_weights import assert_same, change_weights
from tests.reference import Reference
from tests.tiny import GOLDEN, LLADA2, LLADA2_NAME, tiny_checkpoint, tiny_config

FOLDER = GOLDEN / LLADA2_NAME


@st.composite
def shapes(draw: st.DrawFn) -> dict[str, Any]:
    """Keys of config.json: any experts, groups or pools, dense layers, shared experts and share of rotated numbers."""
    groups, each = draw(st.sampled_from([1, 2, 4])), draw(st.integers(2, 4))
    best = draw(st.integers(1, groups))
    per_token = draw(st.integers(1, min(4, best * each)))
    heads, keys = draw(st.sampled_from([(4, 2), (4, 1), (2, 2)]))
    return LLADA2 | {
        "num_experts": groups * each,
        "n_group": groups,
        "topk_group": best,
        "num_experts_per_tok": per_token,
        "expert_capacity": draw(st.one_of(st.just(0), st.integers(per_token, groups * each))),
        "num_shared_experts": draw(st.integers(0, 2)),
        "first_k_dense_replace": draw(st.integers(0, 2)),
        "num_hidden_layers": draw(st.integers(1, 3)),
        "routed_scaling_factor": draw(st.sampled_from([1.0, 2.5])),
        "partial_rotary_factor": draw(st.sampled_from([0.25, 0.5, 1.0])),
        "num_attention_heads": heads,
        "num_key_value_heads": keys,
        "block_size": draw(st.sampled_from([1, 4, 32])),
    }


@settings(max_examples=25)
@given(shapes(), st.integers(1, 40), st.integers(0, 99))
@torch.inference_mode()
def test_the_backbone_is_the_published_network(shape: dict[str, Any], length: int, seed: int) -> None:
    """In float64, in which no two experts are equally good by rounding alone."""
    checkpoint = tiny_checkpoint(seed, **shape)
    tokens = torch.randint(0, 64, (length,), generator=torch.Generator().manual_seed(seed)).tolist()
    weights = published_weights(checkpoint.config, checkpoint.backbone, None)
    ours = checkpoint.backbone.logits(Reference(checkpoint).hidden(tokens))
    torch.testing.assert_close(ours, PlainLlada2(checkpoint.raw, weights).logits(tokens), rtol=0, atol=1e-4)


@torch.inference_mode()
def test_a_published_file_gives_the_published_network() -> None:
    """The file was written by the published code."""
    raw = json.loads((FOLDER / "config.json").read_text()) | {"block_size": 32}
    tokens = list(range(3, 50))
    ours = Reference(load_checkpoint(FOLDER))
    logits = ours.checkpoint.backbone.logits(ours.hidden(tokens))
    plain = PlainLlada2(raw, load_file(FOLDER / "model.safetensors")).logits(tokens)
    torch.testing.assert_close(logits, plain, rtol=0, atol=1e-4)


class TestConfig:
    def test_the_published_keys(self) -> None:
        config = parse_config(tiny_config(**LLADA2))
        assert config.experts == ExpertsConfig(
            8, 3, 16, frozenset({1}), normalized=True, shared_size=16, limit=GroupsConfig(4, 2, 2.5)
        )
        assert config.experts == parse_config(tiny_config(**LLADA2, expert_capacity=0)).experts
        assert (config.family, config.head_dim, config.rotary_dim) == ("llada2_moe", 16, 8)
        assert config.mrp is None

    def test_defaults_are_those_of_the_published_code(self) -> None:
        sizes = ["block_size", "mask_token_id", "eos_token_id", "max_position_embeddings", "rms_norm_eps"]
        experts = ["n_group", "topk_group", "routed_scaling_factor", "num_shared_experts"]
        left_out = dict.fromkeys([*sizes, *experts, "partial_rotary_factor", "use_bias"])
        config = parse_config(tiny_config(**LLADA2, vocab_size=157184) | {"num_experts": 16} | left_out)
        assert (config.block_size, config.mask_token_id, config.eos_token_ids) == (32, 156895, (156892,))
        assert (config.max_positions, config.rms_norm_eps, config.rotary_dim) == (16384, 1e-5, 8)
        assert config.experts is not None
        assert (config.experts.limit, config.experts.shared_size) == (GroupsConfig(8, 4, 2.5), 0)
        raw = tiny_config(**LLADA2, vocab_size=157184) | {"eos_token_id": []}
        assert parse_config(raw).eos_token_ids == (156892,)

    def test_the_weight_of_a_single_expert_is_its_score(self) -> None:
        experts = parse_config(tiny_config(**LLADA2 | {"num_experts_per_tok": 1})).experts
        assert experts is not None
        assert not experts.normalized

    def test_a_pool_of_experts_takes_the_place_of_groups(self) -> None:
        experts = parse_config(tiny_config(**LLADA2, expert_capacity=5)).experts
        assert experts is not None
        assert experts.limit == PoolConfig(5, 32, 2.5)

    def test_a_pool_is_of_blocks_of_the_published_size(self) -> None:
        raw = tiny_config(**LLADA2, expert_capacity=5)
        assert parse_config(raw, block_size=32) == parse_config(raw)
        with pytest.raises(CheckpointError, match="size 16 is not supported: the router was trained for blocks of 32"):
            parse_config(raw, block_size=16)

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"use_bias": True}, "use_bias is True, only False is supported"),
            ({"use_qk_norm": False}, "use_qk_norm is False, only True is supported"),
            ({"score_function": "softmax"}, "score_function is 'softmax', only 'sigmoid' is supported"),
            ({"n_group": 3}, "n_group is 3, expected a divisor of the 8 experts that leaves at least two in a group"),
            ({"topk_group": 5}, "topk_group is 5, allowed are 1 to 4"),
            ({"num_experts_per_tok": 5}, "num_experts_per_tok is 5, allowed are 1 to 4: 2 of 4 groups have so many"),
            ({"delete_token_id": 5}, "delete_token_id is 5 and split_token_id None, expected two tokens that"),
            ({"delete_token_id": 5, "split_token_id": 5}, "delete_token_id is 5 and split_token_id 5, expected two"),
            ({"delete_token_id": 5, "split_token_id": 64}, "split_token_id is 64, supported are up to 63"),
            ({"expert_capacity": 2}, "expert_capacity is 2, allowed are 3 to 8"),
            ({"expert_capacity": 9}, "expert_capacity is 9, allowed are 3 to 8"),
            ({"expert_capacity": True}, "expert_capacity is True, expected an integer"),
            ({"partial_rotary_factor": 0.2}, "partial_rotary_factor is 0.2, expected a share of head_dim 16 that is"),
            ({"mask_token_id": None}, "mask_token_id 156895 is outside the vocabulary of 64"),
        ],
    )
    def test_a_value_that_is_not_supported_is_named(self, changes: dict[str, Any], message: str) -> None:
        with pytest.raises(CheckpointError, match=re.escape(message)):
            parse_config(tiny_config(**(LLADA2 | changes)))


class TestFiles:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        return Path(shutil.copytree(FOLDER, tmp_path / "checkpoint"))

    @pytest.mark.parametrize("shard", [Shard(), Shard(0, 2), Shard(1, 2)], ids=str)
    def test_experts_that_a_trainer_merged_are_the_same(self, folder: Path, shard: Shard) -> None:
        change_weights(folder, merge)
        options = LoadOptions(shard=shard)
        assert_same(load_checkpoint(folder, options), load_checkpoint(FOLDER, options))

    def test_the_bias_of_the_router_stays_exact(self) -> None:
        loaded = load_checkpoint(FOLDER, LoadOptions(dtype=torch.bfloat16))
        bias = loaded.backbone.get_parameter("layers.1.mlp.gate.expert_bias")
        assert torch.equal(bias, load_file(FOLDER / "model.safetensors")["model.layers.1.mlp.gate.expert_bias"])
        dtypes = [weight.dtype for name, weight in loaded.backbone.named_parameters() if "expert_bias" not in name]
        assert {*dtypes, *(table.dtype for table in loaded.backbone.buffers())} == {torch.bfloat16}

    def test_a_wrong_fused_weight_is_named_by_the_whole_shape(self, folder: Path) -> None:
        name = "model.layers.0.attention.query_key_value.weight"
        change_weights(folder, lambda weights: weights.update({name: weights[name][:96].clone()}))
        with pytest.raises(CheckpointError, match=r"has shape \[96, 64\], config.json implies \[128, 64\]"):
            load_checkpoint(folder, LoadOptions(shard=Shard(1, 4)))


def merge(weights: dict[str, Tensor]) -> None:
    """Puts each projection of all experts of a layer into one weight, as inclusionAI's trainer does."""
    for name in [name for name in weights if ".experts.0." in name]:
        each = [weights.pop(name.replace(".experts.0.", f".experts.{number}.")) for number in range(16)]
        weights[name.replace(".experts.0.", ".experts.").removesuffix(".weight")] = torch.stack(each)
