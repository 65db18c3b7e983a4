"""The parts of an engine that a caller may provide: the clock, the costs of forwards, the runner.

A test provides a clock that stands still, fixed costs, or a runner that fails. A runner over several devices can be
provided in the same way.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from service.engine.drafting.costs import StepCosts
from service.engine.forward.runner import RowRunner, Runner


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of an engine, with their defaults.

    `clock`: monotonic seconds. `costs`: costs of forwards for `mrp_steps: "auto"`; None: measured for the first request
    that needs them. `runner`: makes the runner, with the arguments of `Runner`.
    """

    clock: Callable[[], float] = time.monotonic
    costs: StepCosts | None = None
    runner: Callable[..., RowRunner] = Runner
