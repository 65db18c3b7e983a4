"""The program as a whole."""

import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

import service

PROJECT = tomllib.loads((Path(__file__).resolve().parents[2] / "pyproject.toml").read_text("utf-8"))["project"]


def test_it_says_which_version_it_is(run: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--version") == 0
    assert capsys.readouterr().out == f"mrp-serve {PROJECT['version']}\n"
    assert service.__version__ == PROJECT["version"]
