"""Two processes, started once for all tests of a module that only compute with them."""

from collections.abc import Iterator

import pytest

from service.parallel import TensorParallelExecutor


@pytest.fixture(scope="module")
def pair() -> Iterator[TensorParallelExecutor]:
    with TensorParallelExecutor(2, "cpu") as ranks:
        yield ranks
