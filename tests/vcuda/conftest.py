"""The virtual CUDA device as a fixture."""

from collections.abc import Iterator

import pytest

from tests.vcuda.device import VirtualDevice
from tests.vcuda.torch_cuda import virtual_cuda


@pytest.fixture
def device() -> Iterator[VirtualDevice]:
    """A virtual CUDA device. `pytest.skip` where it cannot be built."""
    with virtual_cuda() as device:
        yield device
