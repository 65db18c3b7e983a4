"""The virtual CUDA device as a fixture."""

import pytest

from tests.vcuda.torch_cuda import virtual_cuda


@pytest.fixture
def device():
    """A virtual CUDA device. `pytest.skip` where it cannot be built."""
    with virtual_cuda() as device:
        yield device
