"""Collective operations of the ranks while they compute: all-reduce and broadcast, by torch.distributed.

A group has no part in torch's process-wide state, so a process may have several.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from service.errors import ReplicaLost
from service.parallel.messages import Join

_LOOPBACK = "127.0.0.1"


class ProcessGroup:
    """This rank's side, which waits for the other ranks first.

    An operation raises ReplicaLost if a rank is lost, or silent for the timeout. On CUDA an operation is only queued:
    NCCL ends this process after the timeout.
    """

    def __init__(self, join: Join) -> None:
        store = dist.FileStore(join.store, join.size)  # type: ignore[attr-defined]  # it is there
        store.set_timeout(timedelta(seconds=join.timeout_s))
        with _losses():
            self._backend = _backend(store, join)
        # The order of a sum of two does not matter.
        self._in_order = join.ordered and join.size > 2
        self._size, self._device = join.size, torch.device(join.device)
        self.all_reduce(torch.zeros(1, device=join.device))  # NCCL allocates its memory now, before it is planned

    def all_reduce(self, part: Tensor) -> Tensor:
        """The sum of the ranks' parts, the same bits on each rank."""
        part = part.contiguous()
        if not self._in_order:
            with _losses():
                self._backend.allreduce([part]).wait()
            return part
        parts = [torch.empty_like(part) for _ in range(self._size)]
        with _losses():
            self._backend.allgather([parts], [part]).wait()
        total = parts[0]
        for other in parts[1:]:
            total = total + other
        return total

    def agree(self, vote: bool) -> bool:
        votes = torch.full((1,), float(vote), device=self._device)
        return int(self.all_reduce(votes).item()) == self._size

    def broadcast(self, tensor: Tensor) -> None:
        with _losses():
            self._backend.broadcast([tensor]).wait()


@contextmanager
def _losses() -> Iterator[None]:
    """Raises ReplicaLost for the error of an operation that another rank takes no part in."""
    try:
        yield
    except RuntimeError as error:
        raise ReplicaLost("a collective operation of a model's ranks failed or took too long") from error


def _backend(store: Any, join: Join) -> Any:
    timeout = timedelta(seconds=join.timeout_s)
    if join.device.startswith("cuda"):
        nccl = dist.ProcessGroupNCCL.Options()
        nccl._timeout = timeout  # noqa: SLF001 - it has no other name
        return dist.ProcessGroupNCCL(store, join.rank, join.size, nccl)
    kind: Any = dist.ProcessGroupGloo
    gloo = kind._Options()  # noqa: SLF001
    gloo._timeout = timeout  # noqa: SLF001
    gloo._devices = [kind.create_device(hostname=_LOOPBACK)]  # noqa: SLF001
    return kind(store, join.rank, join.size, gloo)
