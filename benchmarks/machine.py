"""The machine that a benchmark runs on: its name, its measured bandwidth and its measured rate of arithmetic.

Both rates are measured with torch on the device itself, so a step's time above its floor is its own.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

_CPUINFO = Path("/proc/cpuinfo")
#: bytes that are read for the bandwidth: far more than any cache holds
_BYTES = {"cpu": 2**29}
_BYTES_ELSEWHERE = 2**32
#: sides of the square matrices that are multiplied for the rate of operations, the fastest of which counts
_SIDES = {"cpu": (1024, 2048)}
_SIDES_ELSEWHERE = (4096, 8192)
_TURNS = 5


@dataclass(frozen=True, slots=True)
class Rates:
    """The rates of a device: bytes read and floating-point operations, each by the second."""

    bytes_per_s: float
    flops_per_s: float


def machine_name(device: torch.device) -> str:
    """Such as "NVIDIA H200", or "AMD EPYC, 2 cores, 1 thread, torch 2.9.0"."""
    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}"
    lines = _CPUINFO.read_text().splitlines() if _CPUINFO.is_file() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    threads = torch.get_num_threads()
    return (
        f"{models[0] if models else 'CPU'}, {os.cpu_count()} cores, {threads} thread{'s' * (threads > 1)}, "
        f"torch {torch.__version__}"
    )


def measure_rates(device: torch.device, dtype: torch.dtype) -> Rates:
    """The device's rates in a dtype, best of some runs: other work on the machine only lowers them."""
    sides = _SIDES.get(device.type, _SIDES_ELSEWHERE)
    return Rates(_bytes_per_s(device), max(_flops_per_s(side, device, dtype) for side in sides))


def _bytes_per_s(device: torch.device) -> float:
    numbers = torch.ones(_BYTES.get(device.type, _BYTES_ELSEWHERE) // 4, device=device)
    copy = torch.empty_like(numbers)
    reading = numbers.nbytes / _fastest(numbers.sum, device)
    return max(reading, 2 * numbers.nbytes / _fastest(partial(copy.copy_, numbers), device))


def _flops_per_s(side: int, device: torch.device, dtype: torch.dtype) -> float:
    matrix = torch.randn(side, side, device=device).to(dtype)
    return 2 * side**3 / _fastest(partial(torch.mm, matrix, matrix), device)


@torch.inference_mode()
def _fastest(run: Callable[[], object], device: torch.device) -> float:
    times = []
    for _ in range(_TURNS + 1):
        begin = time.perf_counter()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - begin)
    return min(times[1:])
