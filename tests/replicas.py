"""Replicas in the test's own process."""

from collections.abc import AsyncGenerator, Callable

from service.constraints import Constraint
from service.engine import BlockEvent, BlockProgress, EngineDeps, EngineState, GenerationRequest
from service.engine_process.core import EngineCore, load_core
from service.engine_process.messages import EngineInfo, EngineReply
from service.messages.replica_status import ControlCommand
from service.model import Checkpoint
from service.replica.metrics import ReplicaMetrics
from service.replica.replica import Replica
from service.settings.settings import Settings
from service.telemetry.tracing import Tracing, start_tracing
from service.text import TextCodec
from tests.async_engine import AsyncEngine


class InProcessEngine:
    """Implements `EngineClient`. It starts at once."""

    def __init__(self, core: EngineCore) -> None:
        self.core = core
        self.thread = AsyncEngine(core.engine, core.room)
        self.thread.start()

    @property
    def info(self) -> EngineInfo:
        return self.core.info

    @property
    def failure(self) -> str | None:
        return self.thread.failure or self.core.failure

    def state(self) -> EngineState:
        return self.thread.state()

    async def generate(
        self,
        request: GenerationRequest,
        constraint: Constraint | None = None,
        note_ignored: Callable[[tuple[str, ...]], None] = lambda _: None,
    ) -> AsyncGenerator[BlockEvent | BlockProgress]:
        self.core.engine.validate(request)
        if constraint is not None:
            request, ignored = await self.core.compiled(request, constraint)
            note_ignored(ignored)
        items = self.thread.generate(request)
        try:
            async for item in items:
                yield item
        finally:
            await items.aclose()

    async def control(self, command: ControlCommand) -> EngineReply:
        weights, pause = await self.core.control(self.thread, command)
        return EngineReply(0, None, weights, pause)

    def close(self) -> None:
        self.thread.stop()
        self.core.close()


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
