"""Runners that wrap the real one and do what a test says, and engines with such runners."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from service.decode.policy import Prediction
from service.engine import Engine, EngineConfig, EngineDeps
from service.engine.forward.model_forward import Network
from service.engine.forward.pending import Pending, done
from service.engine.forward.rows import Row
from service.engine.forward.runner import ModelRunner
from service.engine.memory_plan import ForwardMemory
from service.model import Checkpoint


class RunnerWrapper:
    """Does what the real runner does, at once. A test overrides the part that it is about."""

    def __init__(self, runner: ModelRunner) -> None:
        self.runner, self.model = runner, runner.model
        self.config, self.device, self.keeps_states = runner.config, runner.device, runner.keeps_states

    def begin(self, network: Network, rows: Sequence[Row]) -> Pending:
        return done(self.evaluate(rows) if network == "backbone" else self.refine(rows))

    def begin_replays(self, rows: Sequence[Row], counts: Sequence[int]) -> None:
        """The host takes every forward in turn."""

    def prepare(self, max_rows: int) -> None:
        self.runner.prepare(max_rows)

    def measure_bytes(self, max_rows: int) -> ForwardMemory:
        return self.runner.measure_bytes(max_rows)

    def evaluate(self, rows: Sequence[Row]) -> list[Prediction]:
        return self.runner.begin("backbone", rows)()

    def refine(self, rows: Sequence[Row]) -> list[Prediction]:
        return self.runner.begin("mrp", rows)()


Wrapped = TypeVar("Wrapped", bound=ModelRunner)


def engine_over(
    make: Callable[[ModelRunner], Wrapped], checkpoint: Checkpoint, deps: EngineDeps | None = None, **limits: Any
) -> tuple[Engine, Wrapped]:
    """An engine, and its runner: what `make` puts around the usual one. By default its cache is small."""
    made: list[Wrapped] = []

    def runner(*arguments: Any) -> Wrapped:
        made.append(make(ModelRunner(*arguments)))
        return made[0]

    engine = Engine(
        checkpoint,
        EngineConfig(**({"kv_cache_tokens": 4096} | limits)),
        deps=replace(deps or EngineDeps(), runner=runner),
    )
    return engine, made[0]
