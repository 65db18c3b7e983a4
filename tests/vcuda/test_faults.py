"""Faults of a CUDA path, planted one by one: the virtual device notices each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from service.engine import Engine
from service.engine.forward import graphs, logits_sampler, rows, sampler
from service.model import layers
from service.model.attention import triton
from tests.tiny import GOLDEN_NAMES
from tests.vcuda.decoding import ALL_ON, decode_golden, on_device, waits
from tests.vcuda.device import VirtualDevice, WrongUse

NAME = GOLDEN_NAMES[0]
Patch = pytest.MonkeyPatch


def decode() -> None:
    decode_golden(Engine(on_device(NAME), ALL_ON), NAME, 1)


def test_without_a_fault_nothing_is_noticed(device: VirtualDevice) -> None:
    decode()
    assert waits(device.counts) == []


# --- wrong numbers ----------------------------------------------------------------------------------


def result_without_copy(patch: Patch) -> None:
    """A graph's own memory is its result, which the next replay overwrites."""

    def run(self: Any, inputs: Any, work: Any) -> Tensor:
        self._load(inputs, work)
        self._replay()
        return self._result[: len(inputs.tokens)]

    patch.setattr(graphs._Graph, "run", run)


def host_reads_early(patch: Patch) -> None:
    """The host reads a copy before it has arrived."""

    def to_host(table: Tensor) -> Callable[[], Tensor]:
        host = torch.empty(table.shape, dtype=table.dtype, pin_memory=True)
        host.copy_(table, non_blocking=True)
        return lambda: host

    patch.setattr(sampler, "to_host_async", to_host)


def pinned_buffer_used_again(patch: Patch) -> None:
    """One pinned buffer for all tables, filled again while its last copy is under way."""
    buffer: list[Tensor] = []

    def to_device(table: np.ndarray, target: Tensor) -> None:
        if not buffer:
            buffer.append(torch.empty(1 << 20, dtype=torch.int32, pin_memory=True))
        part = buffer[0][: len(table)]
        part.copy_(torch.from_numpy(table))
        target[: len(table)].copy_(part, non_blocking=True)

    patch.setattr(triton, "copy_to_device_async", to_device)


def tables_not_loaded(patch: Patch) -> None:
    """A graph keeps the attention's tables of its capture."""

    def load(self: Any, schedule: Any) -> None:
        if not hasattr(self, "loaded"):
            self.loaded = True
            triton.copy_to_device_async(triton._packed(schedule, self._tables.shape), self._tables.packed)

    patch.setattr(triton.TritonGraphAttention, "load", load)


def work_in_a_capture_counts(patch: Patch) -> None:
    """The capture's result is used without a replay: nothing was computed."""

    def run(self: Any, inputs: Any, work: Any) -> Tensor:
        self._load(inputs, work)
        if hasattr(self, "replayed"):
            self._replay()
        self.replayed = True
        return self._result[: len(inputs.tokens)].clone()

    patch.setattr(graphs._Graph, "run", run)


@pytest.mark.parametrize(
    "fault",
    [result_without_copy, host_reads_early, pinned_buffer_used_again, tables_not_loaded, work_in_a_capture_counts],
)
def test_wrong_numbers_are_noticed(device: VirtualDevice, monkeypatch: Patch, fault: Callable[[Patch], None]) -> None:
    fault(monkeypatch)
    with pytest.raises((AssertionError, WrongUse, IndexError, RuntimeError, RuntimeWarning)):
        decode()


# --- waits -------------------------------------------------------------------------------------------


def pageable_sends(patch: Patch) -> str:
    """Tables are sent from ordinary memory."""

    def to_device(table: Any, device: torch.device) -> Tensor:
        host = table if isinstance(table, Tensor) else torch.from_numpy(table)
        return host.to(device, non_blocking=True)

    for module in (rows, sampler, logits_sampler):
        patch.setattr(module, "to_device_async", to_device)
    return "pageable memory"


def indices_on_the_host(patch: Patch) -> str:
    """An index stays on the host."""
    patch.setattr(sampler, "to_device_async", lambda table, _: torch.from_numpy(table))
    return "an index on the host"


def number_of_every_layer(patch: Patch) -> str:
    """Every layer asks for a number."""
    forward = layers.FeedForward.forward

    def checked(self: Any, x: Tensor, *args: Any) -> Tensor:
        return forward(self, x, *args) if float(x.sum()) < 1e30 else x

    patch.setattr(layers.FeedForward, "forward", checked)
    return "_local_scalar_dense"


def mask_of_the_results(patch: Patch) -> str:
    """Results are selected by a boolean mask, whose number of elements the host needs."""
    join = sampler.join
    patch.setattr(sampler, "join", lambda parts: (table := join(parts))[torch.ones_like(table[:, 0], dtype=torch.bool)])
    return "a mask in index"


@pytest.mark.parametrize("fault", [pageable_sends, indices_on_the_host, number_of_every_layer, mask_of_the_results])
def test_waits_are_counted_with_their_line(
    device: VirtualDevice, monkeypatch: Patch, fault: Callable[[Patch], str]
) -> None:
    reason = fault(monkeypatch)
    decode()
    assert any(reason in wait for wait in waits(device.counts))


# --- what CUDA refuses --------------------------------------------------------------------------------


def test_tensors_of_two_devices_in_one_operation_raise(device: VirtualDevice) -> None:
    table = torch.ones(3, device="cuda")
    assert torch.equal((table + 1).cpu(), torch.full((3,), 2.0))
    with pytest.raises(WrongUse, match="one device"):
        table + torch.ones(3)


def test_a_host_tensor_for_a_kernel_raises(device: VirtualDevice, monkeypatch: Patch) -> None:
    monkeypatch.setattr(triton, "to_device_async", lambda table, _: torch.from_numpy(table))
    with pytest.raises(WrongUse, match="Triton kernel"):
        decode_golden(Engine(on_device(NAME), ALL_ON.__class__(attention="triton", cuda_graphs=False)), NAME, 1)


def test_memory_that_does_not_fit_raises(device: VirtualDevice) -> None:
    device.total_bytes = device.live_bytes + 4000
    with pytest.raises(torch.OutOfMemoryError):
        torch.zeros(1001, device="cuda")
    small = torch.zeros(500, device="cuda")
    assert device.peak_bytes >= small.nbytes
    del small
    torch.zeros(999, device="cuda")
