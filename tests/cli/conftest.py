"""The program as a function, under the name that its tests use."""

import pytest

from tests.engine.helpers import CHEAP_ROWS


@pytest.fixture
def run(run_program):
    return run_program


@pytest.fixture
def priced(monkeypatch):
    """The costs of forwards are known, where an engine would measure them."""
    monkeypatch.setattr("service.engine.engine.measure", lambda *_, **__: CHEAP_ROWS)
