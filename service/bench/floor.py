"""The least time that a step can take on a device: bytes over its bandwidth or operations over its rate.

Both rates are measured with torch on the device itself, so what is left above the floor is the step's own. Knows sizes
and a device; no engine.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from service.model import ModelConfig

#: bytes that are read for the bandwidth: far more than any cache holds
_BYTES = {"cpu": 2**29}
_BYTES_ELSEWHERE = 2**32
#: sides of the square matrices that are multiplied for the rate of operations, the fastest of which counts
_SIDES = {"cpu": (1024, 2048)}
_SIDES_ELSEWHERE = (4096, 8192)
_TURNS = 5


@dataclass(frozen=True, slots=True)
class Rates:
    """What a device does: bytes read and floating-point operations, each by the second."""

    bytes_per_s: float
    flops_per_s: float


@dataclass(frozen=True, slots=True)
class Need:
    """What a forward must move and compute, whoever computes it."""

    moved: int
    flops: int

    def seconds(self, rates: Rates) -> float:
        """The least time."""
        return max(self.moved / rates.bytes_per_s, self.flops / rates.flops_per_s)

    def bound(self, rates: Rates) -> str:
        """Which of the two it is bound by: "memory" or "arithmetic"."""
        memory = self.moved / rates.bytes_per_s >= self.flops / rates.flops_per_s
        return "memory" if memory else "arithmetic"


def forward_need(model: ModelConfig, rows: int, context: int, itemsize: int, sequences: int | None = None) -> Need:
    """A backbone forward over rows, each behind `context` tokens of its sequence, with logits everywhere.

    `sequences`: the number of those, which are read once each; None: as many as rows. Moved are the layers' weights and
    the output head once, each sequence's keys and values, and the logits. Rows of the embedding and activations are
    left out: they are small, or stay in caches. Of experts, those are moved that tokens ask for if each asks for any
    with equal chance.
    """
    tokens = rows * model.block_size
    heads, keys = model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
    attention = model.hidden_size * (2 * heads + 2 * keys)
    read, used = _feed_forwards(model, tokens)
    layers, head = model.num_layers * attention, model.hidden_size * model.vocab_size
    kept = 2 * model.num_layers * keys * ((sequences or rows) * context + tokens)
    scores = 4 * model.num_layers * heads * tokens * (context + model.block_size)
    matrices = (layers + read) * (itemsize if model.quantization is None else 1)
    moved = matrices + (head + kept + tokens * model.vocab_size) * itemsize
    return Need(moved, 2 * (layers + head + used) * tokens + scores)


def _feed_forwards(model: ModelConfig, tokens: int) -> tuple[int, int]:
    """Weights of all layers' feed-forwards: those that the tokens ask for together, and those that each asks for."""
    dense = (model.num_layers - model.num_expert_layers) * 3 * model.hidden_size * model.intermediate_size
    experts = model.experts
    if experts is None:
        return dense, dense
    expert = 3 * model.hidden_size * experts.intermediate_size
    every = model.hidden_size * (experts.number + 3 * experts.shared_size)  # the router and the shared experts
    asked = experts.number * (1 - (1 - experts.per_token / experts.number) ** tokens)
    read = dense + model.num_expert_layers * (every + round(asked * expert))
    return read, dense + model.num_expert_layers * (every + experts.per_token * expert)


def measure_rates(device: torch.device, dtype: torch.dtype) -> Rates:
    """The device's rates in a dtype, best of some runs: what else the machine does only ever takes from them."""
    sides = _SIDES.get(device.type, _SIDES_ELSEWHERE)
    return Rates(_bytes_per_s(device), max(_flops_per_s(side, device, dtype) for side in sides))


def _bytes_per_s(device: torch.device) -> float:
    """Bandwidth of reading, or of copying if that is more."""
    numbers = torch.ones(_BYTES.get(device.type, _BYTES_ELSEWHERE) // 4, device=device)
    copy = torch.empty_like(numbers)
    reading = numbers.nbytes / _fastest(numbers.sum, device)
    return max(reading, 2 * numbers.nbytes / _fastest(partial(copy.copy_, numbers), device))


def _flops_per_s(side: int, device: torch.device, dtype: torch.dtype) -> float:
    """Rate of a product of square matrices."""
    matrix = torch.randn(side, side, device=device).to(dtype)
    return 2 * side**3 / _fastest(partial(torch.mm, matrix, matrix), device)


@torch.inference_mode()
def _fastest(run: Callable[[], object], device: torch.device) -> float:
    """Seconds of the wall. The first run warms up."""
    times = []
    for _ in range(_TURNS + 1):
        begin = time.perf_counter()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - begin)
    return min(times[1:])
