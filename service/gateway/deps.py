"""The parts of an ingress that its caller may choose: where it counts, its clock and its pauses."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from service.telemetry.metrics import Registry
from service.telemetry.tracing import Tracing


@dataclass(frozen=True, slots=True)
class IngressDeps:
    """`registry`: the counters, where the backend counts too. Pauses are in seconds.

    `poll_s`: between two polls of the replicas. `catch_up_s`: between two attempts to give a replica a change that it
    has missed. `failover_s`: before the second attempt at a request; it doubles for each further one, up to
    `longest_failover_s`.
    """

    tracing: Tracing | None = None
    registry: Registry = field(default_factory=lambda: Registry("ingress"))
    clock: Callable[[], float] = time.monotonic
    poll_s: float = 1.0
    catch_up_s: float = 2.0
    failover_s: float = 0.05
    longest_failover_s: float = 1.0
