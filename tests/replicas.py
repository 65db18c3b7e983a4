"""Replicas in the test's own process."""

from service.engine import EngineDeps
from service.engine_process.core import EngineCore, load_core
from service.model import Checkpoint
from service.replica.metrics import ReplicaMetrics
from service.replica.replica import Replica
from service.settings.settings import Settings
from service.telemetry.tracing import Tracing, start_tracing
from service.text import TextCodec
from tests.in_process import InProcessEngine


def local_generator(
    replica: str,
    checkpoint: Checkpoint,
    settings: Settings,
    tracing: Tracing | None = None,
    deps: EngineDeps | None = None,
) -> Replica:
    """A replica of a checkpoint that is loaded, its engine on a thread of this process."""
    metrics, codec = ReplicaMetrics(), TextCodec.load(checkpoint.path)
    core = EngineCore(checkpoint, settings, metrics, deps, lambda: codec)
    return Replica(replica, InProcessEngine(core), metrics, settings, tracing)


def load_replica(replica: str, settings: Settings, deps: EngineDeps | None = None) -> Replica:
    """A replica whose checkpoint is loaded into this process, on several devices if the settings say so."""
    metrics = ReplicaMetrics()
    engine = InProcessEngine(load_core(settings, metrics, deps))
    return Replica(replica, engine, metrics, settings, start_tracing(settings))
