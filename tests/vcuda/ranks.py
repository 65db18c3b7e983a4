"""Two ranks on virtual devices: this process and a worker with a virtual device of its own.

NCCL's operations are gloo's over the devices' memory. Each is one kernel, which a capture records and does not compute.
`python -m tests.vcuda.ranks DESCRIPTOR FOLDER` is the worker. With `REFUSING` in the environment its captures fail.
"""

import os
import runpy
from contextlib import contextmanager

import pytest
import torch
from msgspec import structs

from service.engine.forward import graphs
from service.ipc import connections as ipc
from service.parallel import TensorParallelExecutor, executor, process_group
from tests.vcuda.torch_cuda import virtual_cuda

REFUSING = "VCUDA_REFUSES_CAPTURES"


class Nccl:
    """The operations of a `ProcessGroupNCCL` on a virtual device."""

    def __init__(self, gloo, device):
        self._gloo, self._device = gloo, device

    def allreduce(self, tensors):
        return self._call("all_reduce", tensors, self._gloo.allreduce)

    def broadcast(self, tensors):
        return self._call("broadcast", tensors, self._gloo.broadcast)

    def wait(self):
        """The device's stream waits, not the host."""

    def _call(self, name, tensors, start):
        memory = [tensor.memory for tensor in tensors]
        self._device.call_kernel(name, lambda: start(memory).wait())
        return self


def use_gloo(patch, device):
    backend = process_group._backend
    patch.setattr(
        process_group, "_backend", lambda store, join: Nccl(backend(store, structs.replace(join, device="cpu")), device)
    )


@contextmanager
def virtual_ranks(device):
    """Executors have rank 0 on this device, and a worker on a device of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "device_count", lambda: 2)
        patch.setattr(executor, "start_child", lambda _, folder: ipc.start_child("tests.vcuda.ranks", folder))
        use_gloo(patch, device)
        yield


@contextmanager
def two_ranks(device):
    with virtual_ranks(device), TensorParallelExecutor(2, "cuda") as ranks:
        yield ranks


def refuse(self, function):
    """A capture that fails after the first run."""
    function()
    raise graphs.CaptureFailed("refused by rank 1")


def main():
    with virtual_cuda() as device, pytest.MonkeyPatch.context() as patch:
        use_gloo(patch, device)
        if REFUSING in os.environ:
            patch.setattr(graphs.CudaCapture, "__call__", refuse)
        runpy.run_module("service.parallel.worker", run_name="__main__")


if __name__ == "__main__":
    main()
