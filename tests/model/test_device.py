"""How much memory a CPU has: the machine's, or what a container's limit leaves. Which devices can do what."""

import pytest
import torch

from service.errors import SettingsError
from service.model import device
from service.model.device import check_quantization, is_out_of_memory, memory_of, pick_device

MEMINFO = "MemTotal:       24684180 kB\nMemFree:        22000000 kB\nMemAvailable:   22500000 kB\n"


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A folder in which control groups' files may be put."""
    (tmp_path / "meminfo").write_text(MEMINFO)
    monkeypatch.setattr(device, "_MEMINFO", tmp_path / "meminfo")
    files = ((tmp_path / "max", tmp_path / "current", tmp_path / "stat"),)
    monkeypatch.setattr(device, "_GROUPS", files)
    return tmp_path


@pytest.mark.parametrize(
    ("group", "free", "total"),
    [
        ({}, 22500000 * 1024, 24684180 * 1024),  # the machine's
        ({"max": "max\n"}, 22500000 * 1024, 24684180 * 1024),
        # a container's limit, less its use; the file cache is given back
        ({"max": "1000000", "current": "700000", "stat": "anon 5\ninactive_file 100000\n"}, 400000, 1000000),
    ],
)
def test_the_memory_is_the_machines_or_the_rest_of_a_containers_limit(machine, group, free, total):
    for name, text in group.items():
        (machine / name).write_text(text)
    assert memory_of(torch.device("cpu")) == device.DeviceMemory("cpu", free, total)


def chained(error: Exception, cause: Exception) -> Exception:
    """The error as it is raised while the cause is handled."""
    error.__context__ = cause
    return error


FULL = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
INVALIDATED = "CUDA error: operation failed due to a previous error during capture"


@pytest.mark.parametrize(
    "error",
    [
        FULL,
        MemoryError(),
        RuntimeError("[enforce fail at alloc_cpu.cpp:116] DefaultCPUAllocator: can't allocate memory: you tried"),
        RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"),
        RuntimeError("Triton Error [CUDA]: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"),
        chained(RuntimeError(INVALIDATED), FULL),
    ],
    ids=str,
)
def test_every_form_of_out_of_memory_is_known(error):
    assert is_out_of_memory(error)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError(INVALIDATED),
        RuntimeError("CUDA error: an illegal memory access was encountered"),
        RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx`"),
        ValueError("a prompt about running out of memory"),
        chained(ValueError("bookkeeping"), FULL),
    ],
    ids=str,
)
def test_other_errors_are_not_out_of_memory(error):
    assert not is_out_of_memory(error)


def test_a_cuda_device_must_exist(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    assert [pick_device(name) for name in ("cuda", "cuda:1", "cpu")] == ["cuda", "cuda:1", "cpu"]
    with pytest.raises(SettingsError, match="torch sees 2 CUDA devices"):
        pick_device("cuda:2")


def test_fp8_needs_a_device_with_fp8(monkeypatch):
    capability = [(8, 9)]
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda _: capability[0])
    check_quantization("fp8", torch.device("cuda"))
    check_quantization("fp8", torch.device("cpu"))
    capability[0] = (8, 0)
    check_quantization("w8a8", torch.device("cuda"))
    with pytest.raises(SettingsError, match=r"needs compute capability 8\.9.*has 8\.0: take w8a8"):
        check_quantization("fp8", torch.device("cuda"))
