"""The help texts of options are true, and the version is that of the project."""

import inspect
import tomllib
from pathlib import Path

import pytest

import service
from service.cli import generate
from service.decode.knobs import knobs_in
from service.decode.modes import MODES


def helps(command):
    """The help of every option, by name."""
    parameters = inspect.signature(command, eval_str=True).parameters
    return {
        name: parameter.annotation.__metadata__[0].help
        for name, parameter in parameters.items()
        if parameter.annotation not in (int, float)
    }


@pytest.mark.parametrize("knob", sorted({name for params in MODES.values() for name in knobs_in(params)}))
def test_a_knobs_help_begins_with_the_modes_that_use_it(knob):
    users = [mode for mode, params in MODES.items() if knob in knobs_in(params)]
    assert set(helps(generate.command)[knob].partition(":")[0].split(", ")) == set(users)


def test_generate_names_all_modes():
    assert helps(generate.command)["mode"].startswith(", ".join(MODES))


def test_a_scale_that_is_no_number_is_refused(run, capsys):
    assert run("check", "--device", "cpu", "--mrp-scale", "nan") == 1
    assert "mrp_scale is nan, expected a finite number" in capsys.readouterr().err


def test_it_says_which_version_it_is(run, capsys):
    project = tomllib.loads((Path(__file__).resolve().parents[2] / "pyproject.toml").read_text("utf-8"))["project"]
    assert run("--version") == 0
    assert capsys.readouterr().out == f"mrp-serve {project['version']}\n"
    assert service.__version__ == project["version"]
