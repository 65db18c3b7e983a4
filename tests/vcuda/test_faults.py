"""Faults of a CUDA path, planted one by one: the virtual device notices each."""

import pytest
import torch

from service.engine import Engine
from service.engine.forward import graphs
from service.errors import OutputsNotFinite
from service.model import layers, transfer
from service.model.attention import triton
from service.model.transfer import PackedTables
from tests.tiny import GOLDEN_NAMES
from tests.vcuda.decoding import ALL_ON, decode_golden, on_device, waits
from tests.vcuda.device import WrongUse

NAME = GOLDEN_NAMES[0]
Patch = pytest.MonkeyPatch


def decode():
    decode_golden(Engine(on_device(NAME), ALL_ON), NAME, 1)


def test_without_a_fault_nothing_is_noticed(device):
    decode()
    assert waits(device.counts) == []


# --- wrong numbers ----------------------------------------------------------------------------------


def result_without_copy(patch):
    """A graph's own memory is its result, which the next replay overwrites."""

    def replay(self, num_rows, count=1):
        for _ in range(count):
            self._replay()
        return self._result[None, :num_rows].expand(count, -1, -1, -1)

    patch.setattr(graphs._Graph, "replay", replay)


def host_reads_early(patch):
    """The host reads a copy before it has arrived."""

    patch.setattr(transfer._Copies, "wait", lambda self: None)


def pinned_buffer_used_again(patch):
    """One pinned buffer for all tables, filled again while its last copy is under way."""
    buffer, pack = torch.empty(1 << 20, dtype=torch.uint8, pin_memory=True), PackedTables._packed

    def packed(self):
        part = buffer[: self.num_bytes]
        part.copy_(pack(self))
        return part

    patch.setattr(PackedTables, "_packed", packed)


def work_in_a_capture_counts(patch):
    """The capture's result is used without a replay: nothing was computed."""

    capture = graphs.CudaCapture.__call__

    def once_less(self, function):
        replay, result = capture(self, function)
        replays = iter([lambda: None])

        def replay_later():
            next(replays, replay)()

        return replay_later, result

    patch.setattr(graphs.CudaCapture, "__call__", once_less)


@pytest.mark.parametrize(
    "fault", [result_without_copy, host_reads_early, pinned_buffer_used_again, work_in_a_capture_counts]
)
def test_wrong_numbers_are_noticed(device, monkeypatch, fault):
    fault(monkeypatch)
    with pytest.raises((AssertionError, WrongUse, IndexError, RuntimeError, RuntimeWarning, OutputsNotFinite)):
        decode()


# --- waits -------------------------------------------------------------------------------------------


def test_waits_are_counted_with_their_line(device, monkeypatch):
    """Every layer asks for a number."""
    forward = layers.FeedForward.forward

    def checked(self, x, *args):
        return forward(self, x, *args) if float(x.sum()) < 1e30 else x

    monkeypatch.setattr(layers.FeedForward, "forward", checked)
    decode()
    assert any(wait.startswith("_local_scalar_dense at service/model/") for wait in waits(device.counts))


@pytest.mark.parametrize(
    ("reason", "use"),
    [
        ("_local_scalar_dense", lambda numbers: numbers.sum().item()),
        ("a mask in index", lambda numbers: numbers[numbers > 0]),
        ("an index on the host", lambda numbers: numbers[torch.tensor([0])]),
        ("nonzero", torch.nonzero),
        ("copy from pageable memory", lambda _: torch.ones(3).to("cuda", non_blocking=True)),
    ],
)
def test_an_implicit_wait_is_named(device, reason, use):
    numbers = torch.ones(3, device="cuda")
    use(numbers)
    assert [wait.partition(" at ")[0] for wait in waits(device.counts)] == [reason]


# --- what CUDA refuses --------------------------------------------------------------------------------


def test_tensors_of_two_devices_in_one_operation_raise(device):
    table = torch.ones(3, device="cuda")
    assert torch.equal((table + 1).cpu(), torch.full((3,), 2.0))
    with pytest.raises(WrongUse, match="one device"):
        table + torch.ones(3)


def test_a_host_tensor_for_a_kernel_raises(device, monkeypatch):
    monkeypatch.setattr(triton, "to_device_async", lambda table, _: torch.from_numpy(table))
    with pytest.raises(ValueError, match="cannot be accessed from Triton"):
        decode_golden(Engine(on_device(NAME), ALL_ON.__class__(attention="triton", cuda_graphs=False)), NAME, 1)


def test_memory_that_does_not_fit_raises(device):
    device.total_bytes = device.live_bytes + 4000
    with pytest.raises(torch.OutOfMemoryError):
        torch.zeros(1001, device="cuda")
    small = torch.zeros(500, device="cuda")
    assert device.peak_bytes >= small.nbytes
    del small
    torch.zeros(999, device="cuda")
