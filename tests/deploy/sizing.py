"""The arithmetic of the sizing tables in docs/: `mrp-serve check` for shapes, without weights."""

from dataclasses import asdict, dataclass

import torch

from benchmarks.shapes import shape_named
from service.model import parse_config
from service.model.attention import PagedCache
from service.model.checkpoint import num_parameters
from service.model.config import Shard
from tests.tiny import tiny_config

#: left alone: what the driver and other processes take, and activations and logits of one forward
USABLE, WORKING_GIB = 0.9, 2
GPUS = (24, 48, 80, 140)
REQUEST_TOKENS = 2048


@dataclass(frozen=True)
class Size:
    """A model in bfloat16, or a device's part of one."""

    weights_gib: float
    kv_kib_a_token: float

    def requests(self, gpu_gib):
        """How many requests of 2,048 tokens a GPU holds beside the weights; 0 where they do not fit."""
        free = gpu_gib * USABLE - self.weights_gib - WORKING_GIB
        return max(0, int(free * 2**20 / self.kv_kib_a_token / REQUEST_TOKENS))


def size_of(shape, devices=1):
    """What each of so many devices holds of a shape."""
    config = Shard(0, devices).divide(
        parse_config(tiny_config(num_nextn_predict_layers=3) | asdict(shape_named(shape)))
    )
    kv = PagedCache.bytes_per_page(config, torch.bfloat16) / config.block_size
    return Size(num_parameters(config) * torch.bfloat16.itemsize / 2**30, kv / 1024)
