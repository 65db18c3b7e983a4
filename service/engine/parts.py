"""What an engine can be handed instead of making it: the clock, the costs of forwards, the runner.

A test hands a clock that stands still, costs that no machine has to measure, or a runner that fails. A runner over
several devices is handed in the same way.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from service.engine.drafting.costs import StepCosts
from service.engine.forward.runner import RowRunner, Runner


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of an engine that have a usual one.

    `clock`: monotonic seconds. `costs`: of the forwards, for `mrp_steps: "auto"`; None: measured for the first request
    that needs them. `runner`: makes the runner; called as `Runner` is.
    """

    clock: Callable[[], float] = time.monotonic
    costs: StepCosts | None = None
    runner: Callable[..., RowRunner] = Runner
