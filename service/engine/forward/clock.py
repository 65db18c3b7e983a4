"""The clock by which forwards are compared with each other."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch


def clock_of(device: torch.device, ranks: int = 1) -> Callable[[], float]:
    """Seconds of a clock for forwards on a device, or on as many as there are ranks.

    With one CPU thread it is the thread's own time: that of the forward, whoever else wants the core. With several the
    thread that asks does not see the work of the others, so it is the wall's.
    """
    alone = device.type == "cpu" and torch.get_num_threads() == ranks == 1
    return time.thread_time if alone else time.perf_counter
