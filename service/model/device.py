"""The devices of this machine: names, types and CPU threads as settings have them, and memory.

The memory is a GPU's own, or for the CPU the memory that this process may use. In a container the limit of its control
group counts, not the machine's memory.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import torch

from service.errors import SettingsError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")
#: limit and use of a control group, of version 2 and 1; and the file cache in it, which the kernel gives back
_GROUPS = (
    (_CGROUP / "memory.max", _CGROUP / "memory.current", _CGROUP / "memory.stat"),
    (
        _CGROUP / "memory/memory.limit_in_bytes",
        _CGROUP / "memory/memory.usage_in_bytes",
        _CGROUP / "memory/memory.stat",
    ),
)


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


def pick_threads(threads: int | None, processes: int = 1) -> int:
    """CPU threads for torch. By default half the cores, because threads that wait for a busy core cost most.

    `processes`: the number of processes that share the cores.
    """
    return threads or max(1, num_cores() // (2 * processes))


def set_threads(threads: int | None, processes: int = 1) -> None:
    """Sets torch's CPU threads in this process, as `pick_threads` chooses them."""
    torch.set_num_threads(pick_threads(threads, processes))


def num_cores() -> int:
    """The cores that this process may use: a container or `taskset` may allow it fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def settle_threads(threads: int | None = None) -> None:
    """For libraries: sets torch's CPU threads, by default as the program does if the user has chosen no number.

    By itself torch takes every core. Any other number has been chosen, and so has `OMP_NUM_THREADS`: they stay.
    """
    chosen = "OMP_NUM_THREADS" in os.environ or torch.get_num_threads() != num_cores()
    if threads is not None or not chosen:
        torch.set_num_threads(pick_threads(threads))


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Memory of a kind of device ("cpu", "cuda"), in bytes."""

    kind: str
    free: int
    total: int


def memory_of(device: torch.device) -> DeviceMemory:
    """The memory of a device now. Memory that torch holds for reuse counts as free."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        reusable = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return DeviceMemory("cuda", free + reusable, total)
    machine = _numbers(_MEMINFO.read_text())
    free, total = machine["MemAvailable:"] * 1024, machine["MemTotal:"] * 1024
    for limit, used, statistics in _GROUPS:
        if limit.is_file() and (bytes_ := limit.read_text().strip()) != "max":
            cache = _numbers(statistics.read_text()).get("inactive_file", 0)
            total = min(total, int(bytes_))
            free = min(free, max(0, int(bytes_) - int(used.read_text()) + cache))
    return DeviceMemory("cpu", free, total)


def _numbers(text: str) -> dict[str, int]:
    """Parses lines of a name, a number and perhaps a unit."""
    return {words[0]: int(words[1]) for line in text.splitlines() if len(words := line.split()) > 1}
