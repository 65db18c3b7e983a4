"""The program as a function: arguments in, exit status out."""

import sys

import pytest

from service.cli.main import main
from tests.engine.helpers import FAIR


@pytest.fixture
def run(monkeypatch):
    def run_program(*arguments):
        monkeypatch.setattr(sys, "argv", ["mrp-serve", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            main()
        return stopped.value.code

    return run_program


@pytest.fixture
def priced(monkeypatch):
    """The costs of forwards are known, where an engine would measure them."""
    monkeypatch.setattr("service.engine.engine.measure", lambda *_: FAIR)
