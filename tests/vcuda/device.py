"""A virtual CUDA device: tensors that say `cuda:0` and hold CPU memory, and a dispatch mode that plays the device.

The mode checks and counts what CUDA would do; README.md lists it. `torch_cuda.py` replaces `torch.cuda` by functions of
this module. The mode knows torch's operations only, nothing of the engine.
"""

from __future__ import annotations

import sys
import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from tests.vcuda.launcher import Binary

DEVICE = torch.device("cuda:0")
#: operations that make a view and start no kernel
_VIEWS = {
    *("view", "_unsafe_view", "t", "transpose", "permute", "select", "slice", "expand", "unsqueeze", "squeeze"),
    *("split", "split_with_sizes", "unbind", "as_strided", "detach", "alias", "narrow", "unfold", "diagonal"),
    *("_reshape_alias", "view_as"),
}
#: operations whose result, or its shape, the host needs: they wait for the device
_WAITS = {
    *("_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "equal", "item", "bincount", "histc"),
    *("_unique2", "unique_dim", "unique_consecutive"),
}
_INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_"}
_EMPTY = {"empty", "empty_strided", "new_empty", "empty_like", "new_empty_strided"}
#: code whose lines the counts name
_REPOSITORY = ("/service/", "/training/")


class WrongUse(RuntimeError):
    """What CUDA would refuse, or what would read or write wrong numbers there."""


@dataclass(slots=True)
class Counts:
    """What the device did. `waits`: implicit waits of the host, by operation and line. Bytes where the name says so.

    `later_replays`: for each wait for an event, the number of replays since the event.
    """

    launches: Counter[str] = field(default_factory=Counter)
    kernels: Counter[str] = field(default_factory=Counter)
    waits: Counter[str] = field(default_factory=Counter)
    nodes: int = 0
    event_waits: int = 0
    replays: int = 0
    captures: int = 0
    compilations: int = 0
    sends: int = 0
    sent_bytes: int = 0
    fetches: int = 0
    fetched_bytes: int = 0
    allocations: int = 0
    allocated_bytes: int = 0
    pinned: int = 0
    later_replays: list[int] = field(default_factory=list)

    @property
    def num_launches(self):
        return self.launches.total() + self.kernels.total()


@dataclass(eq=False)
class Recording:
    """The operations of a captured graph. `tensors`: the memory that the graph allocates.

    `has_run`: whether the graph has run since its memory was overwritten.
    """

    pool: object = None
    operations: list[Operation] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    has_run: bool = False


@dataclass(frozen=True, slots=True)
class Operation:
    """One node of a graph: `run` computes it, its results go to `outputs`."""

    name: str
    run: Callable[[], Any]
    outputs: list[Tensor]


@dataclass(slots=True, eq=False)
class _Copy:
    """A copy under way. To the host: `host` gets `values`. To the device: `host` must stay as `values`."""

    host: Tensor
    values: Tensor
    line: str
    to_host: bool


class VirtualTensor(Tensor):
    """A tensor of the virtual device. `memory`: its memory, a CPU tensor (or a meta tensor, for shapes alone)."""

    __torch_function__ = torch._C._disabled_torch_function_impl
    #: the device in use
    device_mode: VirtualDevice | None = None
    memory: Tensor

    @staticmethod
    def __new__(cls, memory):
        layout = {"strides": memory.stride(), "storage_offset": memory.storage_offset()}
        return Tensor._make_wrapper_subclass(cls, memory.shape, **layout, dtype=memory.dtype, device=DEVICE)

    def __init__(self, memory):
        self.memory = memory

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if cls.device_mode is None:
            raise WrongUse(f"{func} on a tensor of a virtual device that is gone")
        with cls.device_mode:
            return func(*args, **(kwargs or {}))


#: shared memory of a program by compute capability, as in `cuda_driver.cpp`
_SHARED_BYTES = {(9, 0): 232448, (8, 0): 166912}


class VirtualDevice(TorchDispatchMode):
    """The device. `shapes_only`: memory has no numbers, for models of published sizes.

    `total_bytes`: the size of its memory; `live_bytes`, `peak_bytes`: the memory in use, and the most of it;
    `other_bytes`: the memory of other processes. `num_replays`: those of all `counts` so far.
    `streams`: the streams that were made; `stream`: the current one. `used`: the arguments of `torch.cuda.set_device`.
    `leaves_pools_open`: whether a failed capture leaves its pool open, as torch before 2.13 does.
    """

    @classmethod
    def _should_skip_dynamo(cls):
        """No test compiles. So torch need not import its compiler, which takes six seconds."""
        return False

    def __init__(self, *, shapes_only=False, total_bytes=80 * 2**30, capability=(9, 0), shared_bytes=None):
        super().__init__()
        self.counts, self.shapes_only, self.total_bytes = Counts(), shapes_only, total_bytes
        self.capability = capability
        self.shared_bytes = shared_bytes or _SHARED_BYTES[capability]
        self.live_bytes = self.peak_bytes = self.other_bytes = 0
        self.recording: Recording | None = None
        self.num_replays = 0
        self._graphs: list[weakref.ref[Recording]] = []
        self.copies: list[_Copy] = []
        self._pinned: dict[int, StorageWeakRef] = {}
        self.streams: list[object] = []
        self.stream: object = None
        self.used: list[object] = []
        self.pools = count()
        self.open_pools: set[object] = set()
        self.leaves_pools_open = True
        self.binaries: dict[str, Binary] = {}

    # --- copies and waits ---------------------------------------------------------------------------

    def is_pinned(self, tensor):
        reference = self._pinned.get(tensor.untyped_storage()._cdata)
        return reference is not None and not reference.expired()

    def pin(self, tensor):
        if self.recording is not None:
            raise WrongUse(f"pinned memory is allocated in a capture at {_line()}")
        storage = tensor.untyped_storage()
        self._pinned[storage._cdata] = StorageWeakRef(storage)
        self.counts.pinned += 1
        return tensor

    def wait(self, reason):
        if self.recording is not None:
            raise RuntimeError(f"CUDA error: operation not permitted when stream is capturing ({reason}, {_line()})")
        self.counts.waits[f"{reason} at {_line()}"] += 1
        self.finish(self.copies)

    def finish(self, copies):
        ended = list(copies)
        for copy in ended:
            if copy.to_host:
                copy.host.copy_(copy.values)
            elif not torch.equal(copy.host, copy.values):
                raise WrongUse(f"the source of an unfinished copy to the device has changed; sent at {copy.line}")
        self.copies = [copy for copy in self.copies if not any(copy is other for other in ended)]

    def _send(self, source, dtype, *, blocking):
        if self.recording is not None:
            raise WrongUse(f"a copy from the host in a capture at {_line()}")
        self.counts.sends += 1
        self.counts.sent_bytes += source.nbytes
        pinned = self.is_pinned(source)
        if blocking or (not pinned and source.numel()):
            self.wait("copy to the device" if pinned else "copy from pageable memory")
        elif not self.shapes_only:
            self.copies.append(_Copy(source, source.clone(), _line(), to_host=False))
        return torch.empty_like(source, dtype=dtype, device="meta") if self.shapes_only else source.to(dtype, copy=True)

    def _fetch(self, source, target, dtype, *, blocking):
        self.counts.fetches += 1
        self.counts.fetched_bytes += source.nbytes
        values = torch.zeros(source.shape, dtype=dtype) if self.shapes_only else source.memory.to(dtype, copy=True)
        if target is None or blocking or not self.is_pinned(target):
            self.wait("copy to the host")
            return values if target is None else target.copy_(values)
        poison([target])
        self.copies.append(_Copy(target, values, _line(), to_host=True))
        return target

    # --- dispatch -----------------------------------------------------------------------------------

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        name = func.overloadpacket.__name__
        leaves = [*_tensors(args), *_tensors(kwargs.values())]
        goal = kwargs.get("device")
        on_device = goal is not None and torch.device(goal).type == "cuda"
        if not on_device and not any(isinstance(leaf, VirtualTensor) for leaf in leaves):
            pinned = kwargs.pop("pin_memory", False)
            return self.pin(func(*args, **kwargs)) if pinned else func(*args, **kwargs)
        if name == "_to_copy":
            return self._to_copy(func, args[0], kwargs)
        if name == "copy_" and isinstance(args[0], VirtualTensor) != isinstance(args[1], VirtualTensor):
            return self._copy_across(*args, **kwargs)
        if func._can_decompose():
            with self:
                parts = func.decompose(*args, **kwargs)
            if parts is not NotImplemented:
                return parts
        self._check_waits(name, func, args, kwargs, leaves)
        if name in _INDEXING:
            args = _mapped(args, Tensor, lambda x: x if isinstance(x, VirtualTensor) else VirtualTensor(x.clone()))
        return self._compute(func, name, args, kwargs)

    def _check_waits(self, name, func, args, kwargs, leaves):
        hosts = [leaf for leaf in leaves if not isinstance(leaf, VirtualTensor) and leaf.dim() > 0]
        if hosts and name in _INDEXING:
            self.wait("an index on the host")
        elif hosts:
            raise WrongUse(f"expected all tensors on one device: {func} has a host tensor at {_line()}")
        masks = args[1] if name in _INDEXING else ()
        boolean = any(index is not None and index.dtype in {torch.bool, torch.uint8} for index in masks)
        sizes = name == "repeat_interleave" and kwargs.get("output_size") is None
        if name in _WAITS or boolean or sizes:
            self.wait(f"a mask in {name}" if boolean else name)

    def _to_copy(self, func, source, kwargs):
        kind = torch.device(kwargs.get("device", source.device)).type
        dtype, blocking = kwargs.get("dtype") or source.dtype, not kwargs.pop("non_blocking", False)
        if not isinstance(source, VirtualTensor):
            return self._allocated(self._send(source, dtype, blocking=blocking))
        if kind != "cuda":
            return self._fetch(source, None, dtype, blocking=blocking)
        return self._compute(func, "_to_copy", (source,), kwargs)

    def _copy_across(self, target, source, non_blocking=False):
        if isinstance(source, VirtualTensor):
            return self._fetch(source, target, target.dtype, blocking=not non_blocking)
        if isinstance(target, VirtualTensor):
            target.memory.copy_(self._send(source, target.dtype, blocking=not non_blocking))
        return target

    def _compute(self, func, name, args, kwargs):
        if "device" in kwargs:
            kwargs["device"] = torch.device("meta" if self.shapes_only else "cpu")
        inputs = [leaf for leaf in _tensors([args, [*kwargs.values()]]) if isinstance(leaf, VirtualTensor)]
        inner_args = memory_of(args)
        inner = {key: memory_of(value) for key, value in kwargs.items()}
        if name in _VIEWS:
            return self._wrapped(func(*inner_args, **inner))
        if func._schema.is_mutable:
            self._launched(name, lambda: func(*inner_args, **inner), [])
            slots = zip(args, func._schema.arguments, strict=False)
            targets = [arg for arg, slot in slots if slot.alias_info is not None and slot.alias_info.is_write]
            return kwargs.get("out", (targets or inputs)[0])
        result = func(*inner_args, **inner)
        storages = {tensor.memory.untyped_storage()._cdata for tensor in inputs}
        outputs = [*_tensors([result])]
        fresh = [leaf for leaf in outputs if leaf.untyped_storage()._cdata not in storages]
        if fresh and name not in _EMPTY:
            self._launched(name, lambda: func(*inner_args, **inner), outputs, done=True)
        for leaf in fresh:
            self._count_memory(leaf)
        return self._wrapped(result)

    def _launched(self, name, run, outputs, done=False):
        """Counts a kernel and computes it, unless it is `done`. A capture computes nothing that exists before it."""
        self.counts.launches[name] += 1
        if self.recording is not None:
            self.recording.operations.append(Operation(name, run, outputs))
        elif not done:
            run()

    def call_kernel(self, name, run):
        """Starts a kernel over tensors' memory."""
        self.counts.kernels[name] += 1
        if self.recording is not None:
            self.recording.operations.append(Operation(name, run, []))
        elif not self.shapes_only:
            with _disable_current_modes():
                run()

    def compute(self, name, function, *tensors):
        """One kernel of CUDA that a CPU build makes of several. `function` gets the memory of the tensors."""
        memory = [tensor.memory for tensor in tensors]
        with _disable_current_modes():
            result = function(*memory)
        self._launched(name, lambda: function(*memory), [result], done=True)
        return self._allocated(result)

    # --- memory -------------------------------------------------------------------------------------

    def _wrapped(self, result):
        return _mapped(result, Tensor, VirtualTensor)

    def _allocated(self, memory):
        self._count_memory(memory)
        return VirtualTensor(memory)

    def _count_memory(self, memory):
        size = memory.numel() * memory.element_size()
        if self.live_bytes + size > self.total_bytes - self.other_bytes:
            raise torch.OutOfMemoryError("CUDA out of memory on the virtual device")
        self.counts.allocations += 1
        self.counts.allocated_bytes += size
        self.live_bytes += size
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        weakref.finalize(memory.untyped_storage(), self._freed, size)
        if self.recording is not None:
            self.recording.tensors.append(memory)

    def _freed(self, size):
        self.live_bytes -= size

    # --- graphs -------------------------------------------------------------------------------------

    @property
    def graphs(self):
        return [graph for reference in self._graphs if (graph := reference()) is not None]

    def begin_capture(self, recording):
        self.wait("begin of a capture")
        self.counts.captures += 1
        self.recording = recording

    def end_capture(self):
        poison(self.recording.tensors)
        self._graphs.append(weakref.ref(self.recording))
        self.recording = None

    def note_binary(self, binary):
        if binary.hash not in self.binaries:
            if self.recording is not None:
                raise WrongUse(f"a kernel is compiled in a capture at {_line()}")
            self.binaries[binary.hash] = binary
            self.counts.compilations += 1

    def replay(self, graph):
        """Runs a graph. The memory of all other graphs of its pool is overwritten."""
        self.counts.replays += 1
        self.num_replays += 1
        self.counts.nodes += len(graph.operations)
        if self.shapes_only:
            return
        for other in self.graphs:
            if other is not graph and other.pool == graph.pool and other.has_run:
                poison(other.tensors)
                other.has_run = False
        graph.has_run = True
        with _disable_current_modes():
            for operation in graph.operations:
                result = operation.run()
                if operation.outputs:
                    for target, values in zip(operation.outputs, _tensors([result]), strict=True):
                        target.copy_(values)


def poison(tensors):
    """Overwrites memory with numbers that no result may depend on."""
    with _disable_current_modes():
        for tensor in tensors:
            if tensor.device.type == "meta":
                continue
            if tensor.dtype.is_floating_point:
                tensor.fill_(float("nan"))
            elif tensor.dtype != torch.bool:
                tensor.fill_(-(2**30) if tensor.dtype.itemsize > 2 else 77)


def _tensors(values):
    """The tensors among values and in lists of values."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _mapped(value, kind, function):
    """A value, or a list of values, with the tensors of a kind replaced by the function's results."""
    if isinstance(value, kind):
        return function(value)
    if isinstance(value, list | tuple):
        return type(value)([_mapped(part, kind, function) for part in value])
    return value


def memory_of(value):
    """A value, or a list of values, with the memory of the device's tensors in their place."""
    return _mapped(value, VirtualTensor, lambda tensor: tensor.memory)


def _line():
    """The innermost line of the repository that called torch."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if any(part in name for part in _REPOSITORY) and not name.endswith("model/transfer.py"):
            return f"{name[name.rindex('/service/') + 1 :] if '/service/' in name else name}:{frame.f_lineno}"
        frame = frame.f_back
    return "a test"
