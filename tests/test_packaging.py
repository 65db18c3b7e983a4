"""Installation: documents name extras of pyproject.toml, and the wheel has annotations for type checkers."""

import re
import subprocess
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
PROJECT = PYPROJECT["project"]


def _texts() -> dict[str, str]:
    """Every file of code and documentation that git has."""
    names = ["*.py", "*.md", "Makefile", "Dockerfile", "*.yml", "*.yaml"]
    matches = subprocess.run(["git", "ls-files", *names], cwd=ROOT, capture_output=True, text=True, check=True)
    files = [
        name
        for name in matches.stdout.splitlines()
        if (ROOT / name).is_file() and name not in {"CHANGELOG.md", "tests/test_packaging.py"}
    ]
    return {name: (ROOT / name).read_text("utf-8") for name in files}


def test_every_extra_that_is_named_exists() -> None:
    extras = set(PROJECT["optional-dependencies"])
    named = {name: re.findall(r"'\.\[([\w,]+)\]'", text) for name, text in _texts().items()}
    unknown = {name: lists for name, lists in named.items() if not set(",".join(lists).split(",")) <= {*extras, ""}}
    assert unknown == {}
    assert {extra for lists in named.values() for package in lists for extra in package.split(",")} >= {
        "tracing",
        "train",
    }


def test_serving_installs_no_tools() -> None:
    recipes = {
        target: subprocess.run(
            ["make", "-n", target, "VENV=nowhere"], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout
        for target in ("serve", "install", "test", "lint")
    }
    extras = {target: set(re.findall(r"'\.\[([\w,]+)\]'", recipe)) for target, recipe in recipes.items()}
    assert extras["serve"] == {"tracing"}
    assert all(len(packages) == 2 for target, packages in extras.items() if target != "serve")
    assert not any(" -q" in recipe for recipe in recipes.values()), "a silent install looks as if it hung"


def test_every_package_of_the_wheel_is_typed() -> None:
    """Hatch packs what git does not ignore."""
    assert "Typing :: Typed" in PROJECT["classifiers"]
    packages = PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    markers = [f"{package}/py.typed" for package in packages]
    assert "service/py.typed" in markers
    assert all((ROOT / marker).is_file() for marker in markers)
    ignored = subprocess.run(["git", "check-ignore", *markers], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ignored.stdout == ""
