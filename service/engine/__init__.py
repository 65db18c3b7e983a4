"""The engine: continuous batching over paged KV, usable as a library and by the service.

Modules that need torch are imported on first use. An ingress uses only requests and statistics, so it loads no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from service.engine.config import EngineConfig
from service.engine.observer import EngineState, Observer, StepReport
from service.engine.request import (
    BlockEvent,
    BlockProgress,
    Completion,
    ForwardCounts,
    GenerationRequest,
    SamplingParams,
    Stats,
)

if TYPE_CHECKING:
    from service.engine.engine import Engine, EngineDeps
else:

    def __getattr__(name: str) -> type:
        if name not in {"Engine", "EngineDeps"}:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module("service.engine.engine"), name)


__all__ = [
    "BlockEvent",
    "BlockProgress",
    "Completion",
    "Engine",
    "EngineConfig",
    "EngineDeps",
    "EngineState",
    "ForwardCounts",
    "GenerationRequest",
    "Observer",
    "SamplingParams",
    "Stats",
    "StepReport",
]
