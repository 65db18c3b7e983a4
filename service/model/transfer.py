"""Asynchronous copies of small tables between host and device. They do not wait for the device's queued work."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def to_device_async(table: NDArray[np.generic] | Tensor, device: torch.device) -> Tensor:
    """Copies a host table to a tensor on a device. On CUDA the copy is queued behind the device's work.

    A copy from ordinary memory would wait for that work. Pinned memory comes from torch's cache, which reuses a piece
    only when its copy is done.
    """
    host = table if isinstance(table, Tensor) else torch.from_numpy(table)
    return host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else host.to(device)


def copy_to_device_async(table: NDArray[np.generic], target: Tensor) -> None:
    """As `to_device_async`, into the beginning of a tensor `[n]` on the device."""
    host = torch.from_numpy(table)
    target[: len(host)].copy_(host.pin_memory() if target.device.type == "cuda" else host, non_blocking=True)


def to_host_async(table: Tensor) -> Callable[[], Tensor]:
    """Begins a copy to the host, queued behind the device's work. Calling the result waits for that work only.

    Work that is queued later does not delay it.
    """
    if table.device.type != "cuda":
        return lambda: table
    host = torch.empty(table.shape, dtype=table.dtype, pin_memory=True)
    host.copy_(table, non_blocking=True)
    copied = torch.cuda.Event()
    copied.record(torch.cuda.current_stream(table.device))

    def wait() -> Tensor:
        copied.synchronize()
        return host

    return wait
