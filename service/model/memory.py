"""The memory of a device: a GPU's own, or for the CPU the memory that this process may use.

In a container the limit of its control group counts, not the machine's memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

_MEMINFO = Path("/proc/meminfo")
#: limit and use of a control group, of version 2 and 1; and the file cache in it, which the kernel gives back
_GROUPS = (
    (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current"), Path("/sys/fs/cgroup/memory.stat")),
    (
        Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
        Path("/sys/fs/cgroup/memory/memory.usage_in_bytes"),
        Path("/sys/fs/cgroup/memory/memory.stat"),
    ),
)


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
