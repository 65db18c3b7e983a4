"""Fixtures of the tests of drafts."""

import pytest

from service.engine.drafting.planner import DRAFTS
from tests.plans import use_plan


@pytest.fixture(autouse=True)
def any_plan() -> None:
    """The clock decides which plan runs."""


@pytest.fixture
def drafting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests draft without MRP."""
    use_plan(monkeypatch, DRAFTS)
