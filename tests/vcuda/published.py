"""Checkpoints of published shapes on a virtual device without numbers. They are loaded as from files."""

from dataclasses import asdict, replace
from pathlib import Path

import torch

from benchmarks.shapes import shape_named
from service.model import LoadOptions, parse_config
from service.model.checkpoint import build_checkpoint
from service.model.quantization.schemes import QUANT_SCHEMES
from service.model.weights import empty_networks, published_weights
from tests.vcuda.device import VirtualTensor


class WeightsWithoutNumbers:
    """A `WeightSource` of tensors in bfloat16 that have shapes only."""

    def __init__(self, weights):
        self._weights = weights

    @property
    def names(self):
        return self._weights

    def read(self, name):
        return without_numbers(*self._weights[name].shape)


def without_numbers(*sizes, dtype=torch.bfloat16):
    """A tensor of the device."""
    return VirtualTensor(torch.empty(*sizes, dtype=dtype, device="meta"))


def published_checkpoint(shape, block_size, weights, layers=1):
    """A checkpoint of a published shape, with MRP if its family has it, and with fewer layers: all are launched alike.

    `weights`: a type of torch, or a scheme of 8-bit weights beside bfloat16.
    """
    raw = {
        "model_type": "sdar", "mask_token_id": 151669, "eos_token_id": 151643, "block_size": block_size,
        "rope_theta": 1e6, "rms_norm_eps": 1e-6, "tie_word_embeddings": False, "num_nextn_predict_layers": 1,
        **asdict(replace(shape_named(shape), num_hidden_layers=layers)),
    }  # fmt: skip
    config = parse_config(raw)
    source = WeightsWithoutNumbers(published_weights(config, *empty_networks(config)))
    scheme = weights if weights in QUANT_SCHEMES else None
    options = LoadOptions(torch.bfloat16 if scheme else getattr(torch, weights), "cuda", quantization=scheme)
    return build_checkpoint(Path("published"), raw, source, options)
