"""Biases of queries, keys and values in shards and in 8 bits. `test_networks.py` compares them with transformers'."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import Qwen2Config, Qwen2ForCausalLM

from service.model import Checkpoint, LoadOptions, parse_config
from service.model.checkpoint import weight_bytes
from service.model.config import ModelConfig, Shard
from service.model.quantization.layers import QuantizedLinear
from service.model.weights import load_networks
from tests.tiny import FAST_DLLM, tiny_config

RAW = tiny_config(**FAST_DLLM, num_nextn_predict_layers=0)
CONFIG = parse_config(RAW)


class Weights:
    """The weights of transformers' Qwen2 with random numbers, as a source."""

    def __init__(self) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            config = Qwen2Config(**{key: value for key, value in RAW.items() if key != "model_type"})
            config._attn_implementation = "eager"
            self.network = Qwen2ForCausalLM(config).double().eval().requires_grad_(False)
            for name, weight in self.network.named_parameters():
                torch.nn.init.normal_(weight, mean=float("norm" in name), std=0.3)
        self.weights = {name: weight for name, weight in self.network.state_dict().items() if "lm_head" not in name}

    @property
    def names(self) -> set[str]:
        return set(self.weights)

    def read(self, name: str) -> Tensor:
        return self.weights[name]


@pytest.fixture(scope="module")
def weights() -> Weights:
    return Weights()


def loaded(weights: Weights, options: LoadOptions, config: ModelConfig = CONFIG) -> Checkpoint:
    backbone, _ = load_networks(Path("tiny"), config, weights, options)
    backbone.requires_grad_(False)
    backbone.rotary.to(options.dtype)
    return Checkpoint(Path("tiny"), config, RAW, backbone, None, options.shard)


@pytest.mark.parametrize("quantization", [None, "fp8", "w8a8"])
@torch.inference_mode()
def test_heads_of_two_ranks_are_those_of_one_device(weights: Weights, quantization: str | None) -> None:
    options = LoadOptions(torch.float64, quantization=quantization)
    config = replace(CONFIG, quantization=quantization)
    x = torch.randn(3, 4, CONFIG.hidden_size, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    whole, *ranks = (
        loaded(weights, replace(options, shard=shard), config).backbone.layers[0].self_attn.qkv_proj(x)
        for shard in (Shard(), Shard(0, 2), Shard(1, 2))
    )
    sizes = [4 * 16, 2 * 16, 2 * 16]  # queries, keys, values
    halves = [rank.split([size // 2 for size in sizes], -1) for rank in ranks]
    together = torch.cat([torch.cat(parts, -1) for parts in zip(*halves, strict=True)], -1)
    torch.testing.assert_close(together, whole, rtol=0, atol=1e-9)


@torch.inference_mode()
def test_a_layer_in_8_bits_keeps_its_bias_wide(weights: Weights) -> None:
    config = replace(CONFIG, quantization="w8a8")
    backbone = loaded(weights, LoadOptions(quantization="w8a8"), config).backbone
    layer = backbone.layers[1].self_attn.qkv_proj
    assert isinstance(layer, QuantizedLinear)
    parts = (weights.read(f"model.layers.1.self_attn.{name}_proj.bias") for name in "qkv")
    bias = torch.cat(list(parts)).float()
    assert torch.equal(layer(torch.zeros(1, 1, CONFIG.hidden_size))[0, 0], bias)
    tensors = {id(tensor): tensor.nbytes for tensor in backbone.state_dict(keep_vars=True).values()}
    assert weight_bytes(config, torch.float32) == sum(tensors.values())
