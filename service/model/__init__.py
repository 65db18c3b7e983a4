"""The networks: configuration, Qwen3 layers, paged attention, the SDAR backbone, MRP, checkpoints."""

from service.model.checkpoint import (
    Checkpoint,
    LoadOptions,
    load_checkpoint,
    read_config,
    resolve,
    save_checkpoint,
)
from service.model.config import ModelConfig, MrpConfig, parse_config
from service.model.mrp import Mrp
from service.model.sdar import Sdar
from service.model.weights import published_weights

__all__ = [
    "Checkpoint",
    "LoadOptions",
    "ModelConfig",
    "Mrp",
    "MrpConfig",
    "Sdar",
    "load_checkpoint",
    "parse_config",
    "published_weights",
    "read_config",
    "resolve",
    "save_checkpoint",
]
