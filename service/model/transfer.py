"""Small tables from the host to a device, and back, without waiting for what the device is doing."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def send(table: NDArray[np.generic] | Tensor, device: torch.device) -> Tensor:
    """A table on the host as a tensor on a device. On CUDA the copy is queued behind the work that is there already.

    A copy from ordinary memory would wait for all of that work. Pinned memory comes from torch's cache of it, which
    reuses a piece only when its copy is done.
    """
    host = table if isinstance(table, Tensor) else torch.from_numpy(table)
    return host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else host.to(device)


def send_into(table: NDArray[np.generic], to: Tensor) -> None:
    """As `send`, into the beginning of a tensor `[n]` that stays where it is."""
    host = torch.from_numpy(table)
    to[: len(host)].copy_(host.pin_memory() if to.device.type == "cuda" else host, non_blocking=True)


def fetch(table: Tensor) -> Callable[[], Tensor]:
    """Begins a copy to the host, behind the work that the device has now. Calling the result waits for that work only.

    What is sent to the device later does not delay it.
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
