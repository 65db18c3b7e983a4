"""How much memory a CPU has: the machine's, or what a container's limit leaves."""

import pytest
import torch

from service.model import device
from service.model.device import memory_of

MEMINFO = "MemTotal:       24684180 kB\nMemFree:        22000000 kB\nMemAvailable:   22500000 kB\n"


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A folder in which control groups' files may be put."""
    (tmp_path / "meminfo").write_text(MEMINFO)
    monkeypatch.setattr(device, "_MEMINFO", tmp_path / "meminfo")
    files = ((tmp_path / "max", tmp_path / "current", tmp_path / "stat"),)
    monkeypatch.setattr(device, "_GROUPS", files)
    return tmp_path


def test_without_a_limit_it_is_the_machines(machine):
    assert memory_of(torch.device("cpu")) == device.DeviceMemory("cpu", 22500000 * 1024, 24684180 * 1024)


def test_no_limit_in_a_group_is_none(machine):
    (machine / "max").write_text("max\n")
    assert memory_of(torch.device("cpu")).free == 22500000 * 1024


def test_a_containers_limit_counts_and_its_file_cache_does_not(machine):
    for name, text in (("max", "1000000"), ("current", "700000"), ("stat", "anon 5\ninactive_file 100000\n")):
        (machine / name).write_text(text)
    assert memory_of(torch.device("cpu")) == device.DeviceMemory("cpu", 400000, 1000000)


def test_this_machine_has_some():
    found = memory_of(torch.device("cpu"))
    assert 0 < found.free <= found.total
