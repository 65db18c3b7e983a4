"""A benchmark as a function: its name and its arguments in, exit status out."""

import sys
from importlib import import_module

import pytest

from benchmarks import options, shapes
from benchmarks.shapes import Shape
from tests.engine.helpers import CHEAP_ROWS


@pytest.fixture
def run(monkeypatch):
    def run_benchmark(name, *arguments):
        monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            options.run(import_module(f"benchmarks.{name}").command)
        return stopped.value.code

    return run_benchmark


@pytest.fixture
def priced(monkeypatch):
    """The costs of forwards are known, where an engine or a benchmark would measure them."""
    for user in ("service.engine.engine", "benchmarks.throughput"):
        monkeypatch.setattr(f"{user}.measure", lambda *_, **__: CHEAP_ROWS)


@pytest.fixture
def small_shape(monkeypatch):
    """The demo's layers, barely wider, in place of those of SDAR-1.7B."""
    monkeypatch.setitem(shapes.SHAPES, "sdar-1.7b", Shape(72, 192, 28, 2, 1, 32, 1100, 2048))
