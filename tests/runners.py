"""Runners that wrap the real one and do what a test says, and engines with such runners."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from service.decode.policy import Prediction
from service.engine import Engine, EngineConfig, EngineDeps
from service.engine.forward.rows import Row
from service.engine.forward.runner import CheckpointRunner, ModelRunner
from service.model import Checkpoint


class Around:
    """Does what the real runner does. A test overrides the part that it is about."""

    def __init__(self, runner: ModelRunner) -> None:
        self.runner, self.config, self.device = runner, runner.config, runner.device
        self.num_pages = runner.num_pages

    def evaluate(self, rows: Sequence[Row]) -> list[Prediction]:
        return self.runner.evaluate(rows)

    def refine(self, rows: Sequence[Row]) -> list[Prediction]:
        return self.runner.refine(rows)


Made = TypeVar("Made", bound=ModelRunner)


def engine_over(
    make: Callable[[CheckpointRunner], Made], checkpoint: Checkpoint, deps: EngineDeps | None = None, **limits: Any
) -> tuple[Engine, Made]:
    """An engine, and its runner: what `make` puts around the usual one. Its cache is small, as far as none is given."""
    made: list[Made] = []

    def runner(*given: Any) -> Made:
        made.append(make(CheckpointRunner(*given)))
        return made[0]

    engine = Engine(
        checkpoint,
        EngineConfig(**({"kv_cache_tokens": 4096} | limits)),
        deps=replace(deps or EngineDeps(), runner=runner),
    )
    return engine, made[0]
