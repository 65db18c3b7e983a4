"""`Typing :: Typed` is true: type checkers use the annotations of what the wheel installs."""

from __future__ import annotations

import subprocess
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
PACKAGES = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]


def test_every_package_of_the_wheel_says_that_it_is_typed() -> None:
    assert "Typing :: Typed" in PROJECT["project"]["classifiers"]
    assert set(PACKAGES) >= {"service"}
    assert [package for package in PACKAGES if not (ROOT / package / "py.typed").is_file()] == []


def test_git_ignores_no_marker_so_that_hatch_packs_it() -> None:
    markers = [f"{package}/py.typed" for package in PACKAGES]
    ignored = subprocess.run(["git", "check-ignore", *markers], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ignored.stdout == ""
