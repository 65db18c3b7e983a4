"""What all tests share: one torch thread, and the same random examples in every run."""

from __future__ import annotations

import pytest
import torch
from hypothesis import settings

from tests.clock import Clock

torch.set_num_threads(1)

settings.register_profile("repeatable", derandomize=True, deadline=None, database=None)
settings.register_profile("explore", deadline=None)
settings.load_profile("repeatable")  # look further with: pytest --hypothesis-profile=explore


@pytest.fixture
def clock() -> Clock:
    return Clock()
