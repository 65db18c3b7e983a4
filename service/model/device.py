"""The devices of this machine: names, types and CPU threads as settings have them, and memory.

The memory is a GPU's own, or for the CPU the memory that this process may use. In a container the limit of its control
group counts, not the machine's memory.
"""

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from service.errors import MrpServeError, SettingsError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
#: The texts by which torch, Triton and NVIDIA's libraries say "out of memory" in errors of other types. A full device
#: is the usual cause of `NOT_INITIALIZED`: cuBLAS allocates when it is first used.
_OUT_OF_MEMORY = (
    "out of memory",
    "can't allocate memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUBLAS_STATUS_NOT_INITIALIZED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "cudaErrorMemoryAllocation",
)
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
        device = torch.device(name)
    except RuntimeError as error:
        raise SettingsError(
            f"device is {name!r}, expected 'auto', 'cpu', 'cuda' or 'cuda:N'", param="device"
        ) from error
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device.type == "cuda" and (device.index or 0) >= count:
        devices = f"{count} CUDA devices" if count else "no CUDA device"
        raise SettingsError(f"device is {name!r}, but torch sees {devices} here", param="device")
    return name


def check_quantization(name: str | None, device: torch.device) -> None:
    """SettingsError if a device cannot compute with a quantization scheme: fp8 needs compute capability 8.9."""
    if name != "fp8" or device.type != "cuda":
        return
    major, minor = torch.cuda.get_device_capability(device)
    if (major, minor) < (8, 9):
        raise SettingsError(
            f"quantization fp8 needs compute capability 8.9, and {device} has {major}.{minor}: take w8a8 or another "
            "device",
            param="quantization",
        )


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


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out, on the host or on the device.

    An error that was raised while another was handled also counts by that one: a failed capture hides its cause.
    """
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    if isinstance(error, RuntimeError) and any(text in str(error) for text in _OUT_OF_MEMORY):
        return True
    earlier = error.__cause__ or error.__context__
    return isinstance(error, RuntimeError) and earlier is not None and is_out_of_memory(earlier)


@contextmanager
def out_of_memory_as(failure: MrpServeError) -> Iterator[None]:
    """Raises the failure if memory runs out inside."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise failure from error


def use_device(device: torch.device) -> None:
    """Makes a CUDA device the current one of this thread, where Triton starts kernels. The device `cuda` stays."""
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)


def synchronize(device: torch.device) -> None:
    """Waits until a CUDA device has done all its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measure_peak(device: torch.device, run: Callable[[], object]) -> int:
    """The most bytes that torch reserves on a CUDA device during a call, beyond the bytes in use before it."""
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_reserved(device)
    run()
    return torch.cuda.max_memory_reserved(device) - before


def free_bytes(device: torch.device) -> int:
    """The free bytes of a CUDA device, after torch has given back the memory that it holds for reuse."""
    torch.cuda.empty_cache()
    free: int = torch.cuda.mem_get_info(device)[0]
    return free


def give_back(device: torch.device) -> None:
    """Gives memory that torch, or the host's allocator, holds for reuse back to the device, or to the system."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        trim(0)


def _numbers(text: str) -> dict[str, int]:
    """Parses lines of a name, a number and perhaps a unit."""
    return {words[0]: int(words[1]) for line in text.splitlines() if len(words := line.split()) > 1}
