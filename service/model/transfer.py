"""Asynchronous copies of small tables between host and device. They do not wait for the device's queued work.

A copy from ordinary memory would wait for that work. Pinned memory comes from torch's cache, which reuses a piece only
when its copy is done.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

#: Every table begins at a multiple of this number of bytes: a kernel is compiled for aligned tables or for others.
_ALIGNMENT = 16


class SentTable:
    """A table of `PackedTables`. `tensor`: the table on the device, once it is sent. `start`: its first byte."""

    __slots__ = ("host", "start", "tensor")
    tensor: Tensor

    def __init__(self, host: NDArray[np.generic], start: int) -> None:
        self.host, self.start = host, start

    def within(self, sent: Tensor, first: int = 0) -> Tensor:
        """The table as a view of bytes on the device. `first`: the number of the first of these bytes."""
        start = self.start - first
        flat = sent[start : start + self.host.nbytes].view(getattr(torch, self.host.dtype.name))
        return flat if self.host.ndim == 1 else flat.view(self.host.shape)


class PackedTables:
    """Host tables that one copy sends to a device. On a CPU they stay where they are."""

    def __init__(self, device: torch.device) -> None:
        self._device, self.num_bytes = device, 0
        self._tables: list[SentTable] = []

    def add(self, table: NDArray[np.generic]) -> SentTable:
        """Adds a dense table, which must not change until it is sent."""
        sent = SentTable(table, self.num_bytes)
        self._tables.append(sent)
        self.num_bytes += -(-table.nbytes // _ALIGNMENT) * _ALIGNMENT
        return sent

    def send(self, target: Tensor | None = None, least: int = 0) -> None:
        """Sends all tables. On CUDA the copy is queued behind the device's work.

        `target` uint8 `[n]`: the tensor that they go to. The tables of the first `least` bytes go there and are read
        there, so they get no tensor. If the target is too short for all, the other tables go to a new one.
        """
        if target is None and self._device.type == "cpu":
            for table in self._tables:
                table.tensor = torch.from_numpy(table.host)
            return
        packed = self._packed()
        if target is None:
            target = torch.empty(self.num_bytes, dtype=torch.uint8, device=self._device)
        if self.num_bytes <= len(target):
            target[: self.num_bytes].copy_(packed, non_blocking=True)
            self._view(target, 0, least)
        else:
            target[:least].copy_(packed[:least], non_blocking=True)
            self._view(packed[least:].to(self._device, non_blocking=True), least, least)

    def _packed(self) -> Tensor:
        """All tables in one piece of the host's memory, `[num_bytes]`."""
        packed = torch.empty(self.num_bytes, dtype=torch.uint8, pin_memory=self._device.type == "cuda")
        memory = packed.numpy()
        for table in self._tables:
            memory[table.start : table.start + table.host.nbytes] = table.host.reshape(-1).view(np.uint8)
        return packed

    def _view(self, sent: Tensor, first: int, least: int) -> None:
        """Sets the tensors of the tables from `least` on. `sent`: their bytes, from number `first` on."""
        for table in self._tables:
            if table.start >= least:
                table.tensor = table.within(sent, first)


def to_device_async(table: NDArray[np.generic] | Tensor, device: torch.device) -> Tensor:
    """Copies a host table to a tensor on a device. On CUDA the copy is queued behind the device's work."""
    host = table if isinstance(table, Tensor) else torch.from_numpy(table)
    return host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else host.to(device)


class HostCopies:
    """Copies to the host that begin together, so that one wait is enough for all."""

    def __init__(self) -> None:
        self._next = _Copies()

    def add(self, tables: Sequence[Tensor]) -> Callable[[], list[Tensor]]:
        """Adds tables, whose numbers later work may still change. -> a function that waits for their copies.

        The host's memory is taken now, so `begin` needs none. On a CPU the tables stay where they are.
        """
        if not tables or tables[0].device.type != "cuda":
            return lambda: list(tables)
        copies = self._next
        targets = [torch.empty(table.shape, dtype=table.dtype, pin_memory=True) for table in tables]
        copies.pairs += zip(targets, tables, strict=True)

        def wait() -> list[Tensor]:
            if copies is self._next:
                self.begin()
            copies.wait()
            return targets

        return wait

    def begin(self) -> None:
        """Begins the copies of all tables since the last time, queued behind the device's work.

        Work that is queued later does not delay them.
        """
        copies, self._next = self._next, _Copies()
        copies.begin()


class _Copies:
    """Copies that begin together: the host's tensor and the device's of each."""

    def __init__(self) -> None:
        self.pairs: list[tuple[Tensor, Tensor]] = []
        self._copied: torch.cuda.Event | None = None  # None: nothing is to be waited for

    def begin(self) -> None:
        for target, table in self.pairs:
            target.copy_(table, non_blocking=True)
        if self.pairs:
            self._copied = torch.cuda.Event()
            self._copied.record(torch.cuda.current_stream(self.pairs[0][1].device))
        self.pairs.clear()  # their memory on the device is free behind the copies

    def wait(self) -> None:
        if self._copied is not None:
            self._copied.synchronize()
            self._copied = None
