"""The networks: model families, layers, paged attention, MRP, checkpoints.

Modules that need torch are imported at their first use. A program that only reads config files does not import it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from service.model.config import ModelConfig, MrpConfig
from service.model.families import parse_config
from service.model.files import read_config, resolve

if TYPE_CHECKING:
    from service.model.backbone import Backbone
    from service.model.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
    from service.model.mrp import Mrp
    from service.model.parameter_builder import LoadOptions
    from service.model.weights import published_weights
else:

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.checkpoint"), name)


__all__ = [
    "Backbone",
    "Checkpoint",
    "LoadOptions",
    "ModelConfig",
    "Mrp",
    "MrpConfig",
    "load_checkpoint",
    "parse_config",
    "published_weights",
    "read_config",
    "resolve",
    "save_checkpoint",
]
