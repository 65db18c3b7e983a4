"""Fixtures of the engine's tests."""

import pytest

from service.model import Checkpoint
from tests.plans import use_any_plans
from tests.tiny import tiny_checkpoint


@pytest.fixture(scope="session")
def checkpoint() -> Checkpoint:
    """A tiny checkpoint, whose weights no test changes."""
    return tiny_checkpoint(1)


@pytest.fixture(autouse=True)
def any_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests with `mrp_steps: "auto"` get another plan after each step."""
    use_any_plans(monkeypatch)


@pytest.fixture(params=["eager", "triton"])
def attention(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "triton":
        request.getfixturevalue("triton_device")
        monkeypatch.setattr("service.model.triton_support.use_triton", lambda *_: True)
    name: str = request.param
    return name
