"""What the workflows run exists: targets of the Makefile, Pythons that pyproject.toml supports."""

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
    options = [target for step in steps(file) for target in re.findall(r"\bmake ([a-z-]+)", step.get("run", ""))]
    assert set(options) <= targets


def test_every_supported_python_is_tested() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    supported = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    jobs = yaml.safe_load((FOLDER / "workflows" / "check.yml").read_text("utf-8"))["jobs"]
    assert jobs["test"]["strategy"]["matrix"]["python"] == supported


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.stem)
def test_steps_use_a_commit_of_an_action_or_a_command(file: Path) -> None:
    """A tag can be moved by whoever takes over the action."""
    assert all(("uses" in step) != ("run" in step) for step in steps(file))
    used = re.findall(r"uses: (.*)", file.read_text("utf-8"))
    assert len(used) == sum("uses" in step for step in steps(file))
    assert all(re.fullmatch(r"[\w/-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+", action) for action in used)


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.stem)
def test_checkouts_leave_no_credentials_behind(file: Path) -> None:
    checkouts = [step for step in steps(file) if "actions/checkout" in step.get("uses", "")]
    assert checkouts
    assert [step for step in checkouts if step["with"]["persist-credentials"] is not False] == []


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.stem)
def test_workflows_may_read_only_and_take_no_package_from_a_further_index(file: Path) -> None:
    assert yaml.safe_load(file.read_text("utf-8"))["permissions"] == {"contents": "read"}
    assert "EXTRA_INDEX" not in file.read_text("utf-8")
