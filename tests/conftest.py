"""What all tests share: one torch thread, and the same random examples in every run."""

from __future__ import annotations

import os
from importlib.util import find_spec

import pytest
import torch
from hypothesis import settings

from tests.clock import Clock

torch.set_num_threads(1)

if (
    not torch.cuda.is_available()
):  # before anything imports Triton, whose own functions are made for the one or the other
    os.environ.setdefault("TRITON_INTERPRET", "1")

settings.register_profile("repeatable", derandomize=True, deadline=None, database=None)
settings.register_profile("explore", deadline=None)
settings.load_profile("repeatable")  # look further with: pytest --hypothesis-profile=explore


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(scope="session")
def triton_device() -> str:
    """Where Triton's kernels run: on CUDA, else on the CPU by Triton's interpreter. Skips where there is no Triton."""
    if find_spec("triton") is None:
        pytest.skip("the package triton is not installed")
    return "cuda" if torch.cuda.is_available() else "cpu"
