"""Fixtures of the engine's tests."""

import pytest

from service.model import Checkpoint
from tests.preemptions import use_preemptions
from tests.tiny import tiny_checkpoint


@pytest.fixture(scope="session")
def checkpoint() -> Checkpoint:
    """A tiny checkpoint, whose weights no test changes."""
    return tiny_checkpoint(1)


@pytest.fixture(params=["eager", "triton"])
def attention(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "triton":
        request.getfixturevalue("triton_device")
        monkeypatch.setattr("service.model.triton_support.use_triton", lambda *_: True)
    name: str = request.param
    return name


@pytest.fixture(autouse=True)
def any_preemption(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests lose their KV pages by chance, where a test does not count forwards, pages or steps ahead."""
    if not request.node.get_closest_marker("undisturbed"):
        use_preemptions(monkeypatch)
