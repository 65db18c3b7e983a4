"""Replaces `torch.cuda` by the virtual device for one test, and Triton's interpreter by `kernels.py`."""

import atexit
import ctypes
import subprocess
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from shutil import rmtree, which
from tempfile import mkdtemp
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.vcuda.device import Recording, VirtualDevice, VirtualTensor, WrongUse, memory_of
from tests.vcuda.kernels import KERNELS, PROCESSORS
from tests.vcuda.launcher import LIBRARY, Launcher


@cache
def launcher():
    """Builds what a CPU build of torch lacks, once in a process: the device guard and CUDA's driver library.

    Skips the test where there is no compiler, no Triton, or a CUDA device.
    """
    if torch.cuda.is_available():
        pytest.skip("torch has a CUDA device here; tests/engine/test_gpu.py tests it")
    if which("g++") is None:
        pytest.skip("the virtual CUDA device needs g++")
    triton = pytest.importorskip("triton", reason="triton is not installed")
    folder, torch_root = Path(mkdtemp(prefix="vcuda-")), Path(torch.__file__).parent
    atexit.register(rmtree, folder, ignore_errors=True)
    _build_library("guard.cpp", folder / "guard.so", f"-I{torch_root / 'include'}", f"-L{torch_root / 'lib'}", "-lc10")
    headers = Path(triton.__file__).parent / "backends" / "nvidia" / "include"
    _build_library("cuda_driver.cpp", folder / LIBRARY, f"-I{headers}", f"-Wl,-soname,{LIBRARY}")
    ctypes.CDLL(str(folder / "guard.so"))
    return Launcher(folder)


def _build_library(source, target, *options):
    words = ["g++", str(Path(__file__).parent / source), "-O1", "-std=c++20", "-shared", "-fPIC", *options]
    built = subprocess.run([*words, "-o", str(target)], capture_output=True, text=True, check=False)
    if built.returncode:
        raise RuntimeError(f"g++ cannot build {source}: {built.stderr[-300:]}")


class Event:
    """A CUDA event: work is done once the host has waited for an event behind it."""

    def __init__(self, *_, **__):
        self._copies: list[Any] = []
        self._num_replays = 0

    def record(self, _stream=None):
        self._num_replays = _device().num_replays
        self._copies = list(_device().copies)

    def synchronize(self):
        _device().counts.event_waits += 1
        _device().counts.later_replays.append(_device().num_replays - self._num_replays)
        _device().finish(self._copies)

    def query(self):
        return True


class Stream:
    """A CUDA stream. All work is in the order of its calls."""

    cuda_stream = 0

    def __init__(self, *_, **__):
        _device().streams.append(self)

    def wait_stream(self, _other): ...

    def wait_event(self, _event): ...

    def synchronize(self):
        _device().wait("stream.synchronize")


class CUDAGraph:
    def __init__(self, *_, **__):
        self.recording = Recording()

    def replay(self):
        _device().replay(self.recording)


@contextmanager
def _on_stream(stream):
    device = _device()
    before, device.stream = device.stream, stream
    yield
    device.stream = before


@contextmanager
def _graph(graph, pool=None, stream=None, **_):
    """`torch.cuda.graph`. If an error of CUDA ends the capture, the stream stays current, and the pool stays open."""
    device = _device()
    graph.recording.pool = pool
    _empty_cache()
    before, device.stream = device.stream, stream
    device.begin_capture(graph.recording)
    try:
        yield
    except RuntimeError as error:
        device.recording = None
        if not str(error).startswith("CUDA error"):
            device.stream = before
            raise
        if device.leaves_pools_open:
            device.open_pools.add(pool)
        raise RuntimeError("CUDA error: operation failed due to a previous error during capture")  # noqa: B904
    device.stream = before
    device.end_capture()


def _empty_cache():
    if _device().open_pools:
        raise RuntimeError("captures_underway.empty() INTERNAL ASSERT FAILED")


def _end_allocate_to_pool(_index, pool):
    if pool not in _device().open_pools:
        raise RuntimeError("endAllocatePool: not currently recording to mempool_id")
    _device().open_pools.discard(pool)


def _device():
    if VirtualTensor.device_mode is None:
        raise WrongUse("torch.cuda is used outside the virtual device")
    return VirtualTensor.device_mode


@contextmanager
def virtual_cuda(**options):
    launch = launcher().launch
    device = VirtualDevice(**options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(VirtualTensor, "device_mode", device)
        _replace_cuda(patch, device)
        _replace_tensor_methods(patch, device)
        _replace_triton(patch, device, launch)
        with device:
            yield device


def _replace_cuda(patch, device):
    properties = SimpleNamespace(
        multi_processor_count=PROCESSORS, name="virtual", major=device.capability[0], minor=device.capability[1],
        shared_memory_per_block_optin=device.shared_bytes,
    )  # fmt: skip
    replaced: dict[str, Any] = {
        "_lazy_init": lambda: None,
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": device.used.append,
        "empty_cache": _empty_cache,
        "synchronize": lambda *_: device.wait("torch.cuda.synchronize"),
        "current_stream": lambda *_: device.stream,
        "set_stream": lambda stream: setattr(device, "stream", stream),
        "stream": _on_stream,
        "Stream": Stream,
        "Event": Event,
        "CUDAGraph": CUDAGraph,
        "graph": _graph,
        "graph_pool_handle": lambda: (0, next(device.pools)),
        "get_device_properties": lambda *_: properties,
        "get_device_capability": lambda *_: device.capability,
        "mem_get_info": lambda *_: (device.total_bytes - device.other_bytes - device.live_bytes, device.total_bytes),
        "memory_reserved": lambda *_: device.live_bytes,
        "memory_allocated": lambda *_: device.live_bytes,
        "max_memory_reserved": lambda *_: device.peak_bytes,
        "max_memory_allocated": lambda *_: device.peak_bytes,
        "reset_peak_memory_stats": lambda *_: setattr(device, "peak_bytes", device.live_bytes),
    }
    for name, value in replaced.items():
        patch.setattr(torch.cuda, name, value)
    patch.setattr(torch._C, "_cuda_endAllocateToPool", _end_allocate_to_pool)
    device.stream = Stream.__new__(Stream)


def _replace_tensor_methods(patch, device):
    """Methods that no dispatch mode sees. In inference mode parameters of a wrapper class have no views."""

    def on_device(method, action):
        def call(self, *args, **kwargs):
            return (action if isinstance(self, VirtualTensor) else method)(self, *args, **kwargs)

        return call

    def refuse(self, *_, **__):
        raise TypeError("a tensor of the device has no numpy array and cannot be pinned")

    def pinned(self, *_):
        return device.pin(self.clone())

    def normalized(x, shape, weight=None, eps=None):
        """A CPU build makes it of parts; CUDA has one kernel, behind a copy of a tensor that is not dense."""
        dense = x.contiguous()
        weights = () if weight is None else (weight,)
        return device.compute("rms_norm", lambda x, *w: norm(x, shape, *(w or (None,)), eps), dense, *weights)

    norm = torch.nn.functional.rms_norm
    patch.setattr(
        torch.nn.functional,
        "rms_norm",
        lambda x, *args, **kwargs: (normalized if isinstance(x, VirtualTensor) else norm)(x, *args, **kwargs),
    )
    patch.setattr(Tensor, "tolist", on_device(Tensor.tolist, lambda self: self.cpu().tolist()))
    patch.setattr(Tensor, "numpy", on_device(Tensor.numpy, refuse))
    patch.setattr(Tensor, "pin_memory", on_device(pinned, refuse))
    patch.setattr(Tensor, "is_pinned", lambda self, *_: not isinstance(self, VirtualTensor) and device.is_pinned(self))
    patch.setattr(torch.inference_mode, "__enter__", torch.no_grad.__enter__)
    patch.setattr(torch.inference_mode, "__exit__", torch.no_grad.__exit__)


def _replace_triton(patch, device, launch):
    """Kernels are launched by Triton's launcher. Then they run by their definition in torch.

    A kernel without a definition runs in Triton's interpreter.
    """
    from triton.runtime.interpreter import GridExecutor

    interpret = GridExecutor.__call__

    def call(self, *args, **kwargs):
        grid = self.grid if isinstance(self.grid, tuple) else self.grid(kwargs)
        device.note_binary(launch(self.fn, grid, args, kwargs, device.capability))
        name = self.fn.__name__
        inner, named = memory_of(args), {key: memory_of(value) for key, value in kwargs.items()}
        if "WIDE" in named:
            named["WIDE"] = True  # the interpreter cannot multiply bfloat16; the products are the same
        definition = partial(KERNELS[name], grid) if name in KERNELS else partial(interpret, self)
        device.call_kernel(name, lambda: definition(*inner, **named))

    patch.setattr(GridExecutor, "__call__", call)
