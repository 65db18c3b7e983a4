"""Device and dtype names as people write them, turned into what torch wants."""

from __future__ import annotations

import os

import torch

from service.errors import SettingsError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def pick_device(name: str) -> str:
    """`auto` takes a CUDA device if there is one. SettingsError for a device torch does not have."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        kind = torch.device(name).type
    except RuntimeError as error:
        raise SettingsError(
            f"device is {name!r}, expected 'auto', 'cpu', 'cuda' or 'cuda:N'", param="device"
        ) from error
    if kind == "cuda" and not torch.cuda.is_available():
        raise SettingsError(f"device is {name!r}, but torch sees no CUDA device here", param="device")
    return name


def pick_dtype(name: str, device: str) -> torch.dtype:
    """`auto` takes bfloat16 on CUDA and float32 elsewhere."""
    if name == "auto":
        return torch.bfloat16 if device.startswith("cuda") else torch.float32
    if name not in DTYPES:
        raise SettingsError(f"dtype is {name!r}, allowed are 'auto', {', '.join(map(repr, DTYPES))}", param="dtype")
    return DTYPES[name]


def pick_threads(number: int | None, processes: int = 1) -> int:
    """CPU threads for torch; None takes half the cores, because threads that wait for a busy core cost most.

    `processes`: how many share them.
    """
    return number or max(1, num_cores() // (2 * processes))


def set_threads(number: int | None, processes: int = 1) -> None:
    """Sets torch's CPU threads in this process to what `pick_threads` says."""
    torch.set_num_threads(pick_threads(number, processes))


def num_cores() -> int:
    """The cores that this process may use: a container or `taskset` may allow it fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def settle_threads(number: int | None = None) -> None:
    """For libraries: sets torch's CPU threads to the number given, else as the program does if nobody has chosen.

    By itself torch takes every core. Any other number has been chosen, and so has `OMP_NUM_THREADS`: they stay.
    """
    chosen = "OMP_NUM_THREADS" in os.environ or torch.get_num_threads() != num_cores()
    if number is not None or not chosen:
        torch.set_num_threads(pick_threads(number))
