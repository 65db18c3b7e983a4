"""The optimiser and its schedule: Muon for matrices, AdamW for the rest, a trapezoid over the CPU time it has had.

The schedule follows the clock, not a step count, so a recipe of so many minutes ends annealed on any
machine. Knows no losses.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

import torch
from torch import Tensor, nn

_WARMUP_STEPS = 150
_FLAT_SHARE = 0.4
_FLOOR = 0.01


class Clock:
    """How much of a stage's time is gone, in [0, 1]; `spent` seconds count from an earlier run.

    It counts the CPU time of a thread, so a busy machine or a pause takes nothing from the result.
    """

    def __init__(self, minutes: float, spent: float = 0.0) -> None:
        self._seconds, self._start = minutes * 60, _thread_seconds() - spent

    @property
    def spent(self) -> float:
        """Seconds the stage has had."""
        return _thread_seconds() - self._start

    @property
    def share(self) -> float:
        """The share of the stage that is over."""
        return min(1.0, self.spent / self._seconds)


class Optimiser:
    """Muon over the layers' matrices, AdamW over embeddings, heads and norms, one learning rate."""

    def __init__(self, named: Iterable[tuple[str, nn.Parameter]], rate: float) -> None:
        matrices: list[nn.Parameter] = []
        others: list[nn.Parameter] = []
        for name, parameter in named:
            inner = parameter.dim() == 2 and not name.startswith(("embed_tokens", "lm_head"))
            (matrices if inner else others).append(parameter)
        self._rate, self._parameters, self.steps = rate, matrices + others, 0
        self._parts: list[torch.optim.Optimizer] = [
            torch.optim.Muon(matrices, lr=rate, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(others, lr=rate, betas=(0.9, 0.98), weight_decay=0.0),
        ]

    def step(self, loss: Tensor, share: float) -> None:
        """One update; `share` is the clock's."""
        for part in self._parts:
            part.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self._parameters, 1.0)
        decay = max(_FLOOR, min(1.0, (1 - share) / (1 - _FLAT_SHARE)))
        rate = self._rate * min(1.0, (self.steps + 1) / _WARMUP_STEPS) * decay
        for part in self._parts:
            for group in part.param_groups:
                group["lr"] = rate
            part.step()
        self.steps += 1


def _thread_seconds() -> float:
    return time.process_time() / torch.get_num_threads()
