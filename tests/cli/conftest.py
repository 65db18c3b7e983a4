"""The program as a function: arguments in, exit status out."""

import sys
from functools import partial

import pytest

from service.bench import determinism, speed
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
    for user in ("service.engine.engine", "service.bench.loads"):
        monkeypatch.setattr(f"{user}.measure", lambda *_: FAIR)


@pytest.fixture
def brief(monkeypatch):
    """`mrp-serve determinism` asks for short answers."""
    monkeypatch.setattr(determinism, "count_differences", partial(determinism.count_differences, new_tokens=6))
    monkeypatch.setattr(speed, "Workload", partial(speed.Workload, new_tokens=6))
