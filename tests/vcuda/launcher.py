"""Launches Triton kernels as CUDA does, without a device: Triton's own launcher in a process of its own.

This process interprets kernels, and Triton decides at its import whether it interprets or compiles. So each launch of
the virtual device goes to a second process. There Triton binds and specialises the arguments, compiles the kernel to a
binary for the device's compute capability, loads it and launches it. All of this is Triton's own. Only CUDA's driver
library below it (`cuda_driver.cpp`) starts nothing.
"""

import atexit
import ctypes
import importlib
import os
import pickle
import re
import subprocess
import sys
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

#: devices by compute capability, in the order of `cuda_driver.cpp`
CAPABILITIES = ((9, 0), (8, 0))
#: the name by which Triton links CUDA's driver
LIBRARY = "libcuda.so.1"
_DEVICE_MEMORY, _HOST_MEMORY = 1 << 46, 1 << 40
_ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Pointer:
    """A tensor as Triton sees it. `offset`: its first byte, modulo 16; CUDA's allocations begin at multiples of 512."""

    dtype: torch.dtype
    offset: int
    on_device: bool

    def data_ptr(self):
        return (_DEVICE_MEMORY if self.on_device else _HOST_MEMORY) + self.offset


@dataclass(frozen=True, slots=True)
class Launch:
    """A launch as the code of the service makes it. `kernel`: its module and name."""

    kernel: tuple[str, str]
    grid: tuple[Any, ...]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    capability: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Binary:
    """The binary that a launch takes. `hash`: Triton's name of it. `shared_bytes`: shared memory of a program.

    `kernel`: the kernel's name. `waits_to_store`: whether its warps wait for one another before one stores a number.
    `products`: PTX's instructions of tensor cores in it, without their sizes. `running`: how many of their groups may
    still run when a loop begins again. `from_registers`: whether one of them reads an operand from registers meanwhile.
    """

    hash: str
    kernel: str
    waits_to_store: bool
    shared_bytes: int
    products: frozenset[str]
    running: int
    from_registers: bool


class Launcher:
    """The second process. Equal launches are sent once, since they meet equal code there.

    `folder`: where the built `cuda_driver.cpp` lies under the name `LIBRARY`.
    """

    def __init__(self, folder):
        environment = os.environ | {"TRITON_INTERPRET": "0", "TRITON_LIBCUDA_PATH": str(folder)}
        self._process = subprocess.Popen(
            [sys.executable, "-c", f"from {__name__} import main; main()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            cwd=_ROOT,
        )
        atexit.register(self._process.communicate)
        self._answers: dict[bytes, Binary | Exception] = {}

    def launch(self, kernel, grid, args, kwargs, capability):
        """Launches a kernel, or raises what Triton or CUDA's driver raises. `kernel`: the undecorated function."""
        launch = Launch(
            (kernel.__module__, kernel.__qualname__),
            grid,
            tuple(map(_as_sent, args)),
            {name: _as_sent(value) for name, value in kwargs.items()},
            capability,
        )
        request = pickle.dumps(launch)
        if request not in self._answers:
            self._process.stdin.write(request)
            self._process.stdin.flush()
            self._answers[request] = pickle.load(self._process.stdout)
        answer = self._answers[request]
        if isinstance(answer, Exception):
            raise copy(answer)  # a kept exception would keep the frames of its traceback
        return answer


def _as_sent(argument):
    if not isinstance(argument, Tensor):
        return argument
    offset = argument.storage_offset() * argument.element_size() % 16
    return Pointer(argument.dtype, offset, argument.device.type == "cuda")


# --- the second process ---------------------------------------------------------------------------------


def main():
    """Answers launches from stdin on stdout, until stdin ends."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what compilers print
    library = ctypes.CDLL(str(Path(os.environ["TRITON_LIBCUDA_PATH"]) / LIBRARY), ctypes.RTLD_GLOBAL)
    library.num_launches.restype = ctypes.c_uint64
    device = _Device(library.num_launches)
    while True:
        try:
            launch = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            answer: Binary | Exception = device.launch(launch)
            pickle.dumps(answer)
        except Exception as error:  # noqa: BLE001 - the other process raises it
            answer = _portable(error)
        pickle.dump(answer, answers)
        answers.flush()


class _Device:
    """The current CUDA device of this process, as Triton asks torch for it."""

    def __init__(self, num_launches):
        from triton.backends.nvidia.driver import CudaDriver
        from triton.runtime.driver import driver

        self._num_launches, self._current = num_launches, 0
        torch.cuda.get_device_capability = lambda device=None: CAPABILITIES[device or 0]
        torch.cuda.current_device = lambda: self._current
        driver.set_active(CudaDriver())
        driver.active.get_current_stream = lambda _: 0

    def launch(self, launch):
        """Raises ValueError if CUDA would start nothing."""
        self._current = CAPABILITIES.index(launch.capability)
        module, name = launch.kernel
        kernel, before = getattr(importlib.import_module(module), name), self._num_launches()
        compiled = kernel[launch.grid](*launch.args, **launch.kwargs)
        if self._num_launches() == before:
            raise ValueError(f"{name} was not started: its grid {launch.grid} has no program")
        ptx = compiled.asm["ptx"]
        products = frozenset(re.findall(r"wgmma\.mma_async|mma\.sync", ptx))
        from_registers = re.search(r"wgmma\.mma_async\S+\s+\{[^}]*\},\s*\{", ptx) is not None
        waits_to_store = "bar.sync" in ptx.partition("st.global")[0]
        return Binary(
            compiled.hash, name, waits_to_store, compiled.metadata.shared, products, _running(ptx), from_registers
        )


def _running(ptx):
    loops = [body for _, body in re.findall(r"^(\$L__BB\d+_\d+):(.*?bra\s+\1;)", ptx, re.DOTALL | re.MULTILINE)]
    waits = [re.findall(r"wgmma\.wait_group\S*\s+(\d+)", body) for body in loops]
    return max((int(numbers[-1]) for numbers in waits if numbers), default=0)


def _portable(error):
    """The error itself, or its words if it cannot be sent."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
