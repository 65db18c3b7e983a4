"""The command as a function."""

import sys

import pytest

from benchmarks.options import run as run_benchmark
from benchmarks.paper.__main__ import command
from tests.engine.helpers import CHEAP_ROWS


@pytest.fixture
def paper(monkeypatch):
    """paper(*words) -> exit status. The costs of forwards are known, not measured."""
    monkeypatch.setattr("service.engine.engine.measure", lambda *_, **__: CHEAP_ROWS)

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["paper", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            run_benchmark(command, "benchmarks.paper")
        return int(ended.value.code or 0)

    return run
