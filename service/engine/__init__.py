"""The engine: continuous batching over paged KV, usable as a library and by the service."""

from service.engine.config import EngineConfig
from service.engine.engine import Engine
from service.engine.observer import EngineState, Observer, StepReport
from service.engine.request import BlockEvent, Completion, Forwards, GenerationRequest, SamplingParams, Stats
from service.engine.worker import EngineWorker

__all__ = [
    "BlockEvent",
    "Completion",
    "Engine",
    "EngineConfig",
    "EngineState",
    "EngineWorker",
    "Forwards",
    "GenerationRequest",
    "Observer",
    "SamplingParams",
    "Stats",
    "StepReport",
]
