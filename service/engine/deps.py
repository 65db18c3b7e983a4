"""The dependencies of an engine that a caller may provide: clock, costs of forwards, runner, further ranks.

A test provides a clock that stands still, fixed costs, or a runner that fails.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from service.engine.drafting.costs import StepCosts
from service.engine.forward.model_forward import ExecutionConfig, ModelForward, ShapePolicy
from service.engine.forward.runner import CheckpointRunner, ModelRunner
from service.model.checkpoint import Checkpoint, LoadOptions
from service.model.memory import DeviceMemory


class Ranks(Protocol):
    """The other processes of a tensor-parallel engine, each with a part of the checkpoint (`service/parallel`)."""

    @property
    def failure(self) -> str | None:
        """The reason why the ranks can no longer compute. None while they can."""

    def memory(self) -> DeviceMemory:
        """The memory of the device with the least free memory."""

    def networks(
        self, checkpoint: Checkpoint, num_pages: int, shapes: ShapePolicy, execution: ExecutionConfig
    ) -> ModelForward:
        """The networks over all ranks. `checkpoint`: the part of this process."""

    def fetch(self, name: str, options: LoadOptions) -> Checkpoint:
        """Loads new weights for all parts beside the served weights. Returns the part of this process."""

    def apply(self, fresh: Checkpoint) -> None:
        """Replaces the served weights by the loaded ones. No forward may be under way."""

    def close(self) -> None:
        """Ends the processes."""


@dataclass(frozen=True, slots=True)
class EngineDeps:
    """The dependencies of an engine, with their defaults.

    `clock`: monotonic seconds. `costs`: costs of forwards for `mrp_steps: "auto"` and for several tenants; None:
    measured for the first request that needs them. `runner`: makes the runner, with the arguments of
    `CheckpointRunner`. `ranks`: None where this process has the whole checkpoint.
    """

    clock: Callable[[], float] = time.monotonic
    costs: StepCosts | None = None
    runner: Callable[..., ModelRunner] = CheckpointRunner
    ranks: Ranks | None = None
