"""What the workflows run exists: targets of the Makefile, Pythons that pyproject.toml supports."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / ".github"
WORKFLOWS = sorted((FOLDER / "workflows").glob("*.yml"))


def steps(file: Path) -> list[dict[str, Any]]:
    """Every step of every job."""
    jobs = yaml.safe_load(file.read_text("utf-8"))["jobs"].values()
    assert all("timeout-minutes" in job for job in jobs)
    return [step for job in jobs for step in job["steps"]]


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.stem)
def test_make_knows_every_target_that_is_asked_for(file: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    asked = [target for step in steps(file) for target in re.findall(r"\bmake ([a-z-]+)", step.get("run", ""))]
    assert set(asked) <= targets


def test_every_supported_python_is_tested() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    supported = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    jobs = yaml.safe_load((FOLDER / "workflows" / "check.yml").read_text("utf-8"))["jobs"]
    assert jobs["test"]["strategy"]["matrix"]["python"] == supported


def test_steps_use_a_version_of_an_action_or_a_command() -> None:
    for step in (step for file in WORKFLOWS for step in steps(file)):
        assert ("uses" in step) != ("run" in step)
        assert re.fullmatch(r"[\w/-]+@v\d+", step.get("uses", "a@v1"))


@pytest.mark.parametrize("file", sorted((FOLDER / "ISSUE_TEMPLATE").glob("*.yml")), ids=lambda file: file.stem)
def test_forms_of_issues_have_what_a_host_asks_for(file: Path) -> None:
    form = yaml.safe_load(file.read_text("utf-8"))
    assert "blank_issues_enabled" in form or {"name", "description", "body"} <= set(form)
