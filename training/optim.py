"""The optimiser and its schedule. By default: Muon for matrices, AdamW for the rest, a trapezoidal learning rate.

The published recipe has AdamW for all weights and a cosine (recipes.py).
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn


class Progress(Protocol):
    """The progress that a schedule follows."""

    @property
    def share(self) -> float:
        """The share of the training that is over, in [0, 1]."""


class Steps:
    """The progress of a training by its number of updates, for runs that must be repeatable bit for bit."""

    def __init__(self, total: int, done: int = 0) -> None:
        self._total, self.done = total, done

    @property
    def share(self) -> float:
        """The share of the updates that are over."""
        return min(1.0, self.done / self._total)


@dataclass(frozen=True, slots=True)
class Schedule:
    """The learning rate: rises over `warmup` updates, is constant up to the share `flat` of the training, then falls.

    `rate`: the peak. `floor`: the final rate as a share of the peak. `cosine`: it falls along half a cosine wave, as
    `cosine_with_min_lr` of transformers does; otherwise along a line.
    """

    rate: float
    warmup: int = 150
    flat: float = 0.4
    floor: float = 0.01
    cosine: bool = False

    def at(self, step: int, share: float) -> float:
        """The rate of the next update. `step`: updates done. `share`: the share of the training that is over."""
        left = min(1.0, (1 - share) / (1 - self.flat))
        if self.cosine:
            decay = self.floor + (1 - self.floor) * (1 - math.cos(math.pi * left)) / 2
        else:
            decay = max(self.floor, left)
        return self.rate * min(1.0, (step + 1) / max(1, self.warmup)) * decay


#: the optimiser of the layers' matrices
Matrices = Literal["muon", "adamw"]


class Optimiser:
    """One learning rate for all weights. `matrices`: the optimiser of the layers' matrices.

    Embeddings, heads and norms have AdamW. If matrices have it, too, its constants are torch's and transformers'
    defaults, without decay of the weights.
    """

    def __init__(
        self,
        named: Iterable[tuple[str, nn.Parameter]],
        schedule: Schedule | float,
        clip: float = 1.0,
        matrices: Matrices = "muon",
    ) -> None:
        inner: list[nn.Parameter] = []
        outer: list[nn.Parameter] = []
        for name, parameter in named:
            matrix = parameter.dim() == 2 and not name.startswith(("embed_tokens", "lm_head"))
            (inner if matrix else outer).append(parameter)
        self._schedule = schedule if isinstance(schedule, Schedule) else Schedule(schedule)
        self.parameters = inner + outer
        self.steps = 0
        self._clip = clip
        self._parts = _parts(inner, outer, self._schedule.rate, matrices)

    def step(self, loss: Tensor, share: float) -> None:
        """One update. `share`: the share of the training that is over."""
        self.forget()
        loss.backward()
        self.update(share)

    def forget(self) -> None:
        """Clears the gradients."""
        for part in self._parts:
            part.zero_grad(set_to_none=True)

    def update(self, share: float) -> None:
        """One update by the gradients gathered since `forget`."""
        nn.utils.clip_grad_norm_(self.parameters, self._clip)
        rate = self._schedule.at(self.steps, share)
        for part in self._parts:
            for group in part.param_groups:
                group["lr"] = rate
            part.step()
        self.steps += 1

    def state(self) -> dict[str, Any]:
        """The state from which a later `load` continues bit for bit."""
        return {"steps": self.steps, "parts": [part.state_dict() for part in self._parts]}

    def load(self, state: dict[str, Any]) -> None:
        """Takes the state of an optimiser over the same parameters."""
        self.steps = state["steps"]
        for part, saved in zip(self._parts, state["parts"], strict=True):
            part.load_state_dict(saved)


def _parts(
    inner: list[nn.Parameter], outer: list[nn.Parameter], rate: float, matrices: Matrices
) -> list[torch.optim.Optimizer]:
    if matrices == "adamw":
        return [torch.optim.AdamW(inner + outer, lr=rate, weight_decay=0.0)]
    return [
        torch.optim.Muon(inner, lr=rate, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(outer, lr=rate, betas=(0.9, 0.98), weight_decay=0.0),
    ]
