"""Replicas in the test's own process."""

from __future__ import annotations

from service.engine import EngineDeps
from service.model import Checkpoint
from service.replica.core import Core
from service.replica.generator import Generator
from service.replica.local import LocalEngine
from service.replica.metrics import ReplicaMetrics
from service.settings import Settings
from service.telemetry.tracing import Tracing
from service.text import TextCodec


def local_generator(
    replica: str,
    checkpoint: Checkpoint,
    settings: Settings,
    tracing: Tracing | None = None,
    deps: EngineDeps | None = None,
) -> Generator:
    """A replica of a checkpoint that is loaded, its engine on a thread of this process."""
    metrics, codec = ReplicaMetrics(), TextCodec.load(checkpoint.path)
    core = Core(checkpoint, settings, metrics, deps, lambda: codec)
    return Generator(replica, LocalEngine(core, settings.stall_timeout_s), metrics, settings, tracing)
