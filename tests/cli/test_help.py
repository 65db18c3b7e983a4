"""The help texts of options are true, and the version is that of the project."""

import inspect
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import service
from service.cli import generate
from service.decode.knobs import knobs_in
from service.decode.modes import MODES
from service.settings.settings import SECTIONS
from service.settings.sources import ALIASES


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


@pytest.mark.parametrize("flag", ["--version", "-V"])
def test_it_says_which_version_it_is(run, capsys, flag):
    project = tomllib.loads((Path(__file__).resolve().parents[2] / "pyproject.toml").read_text("utf-8"))["project"]
    assert run(flag) == 0
    assert capsys.readouterr().out == f"mrp-serve {project['version']}\n"
    assert service.__version__ == project["version"]


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_the_settings_stand_in_panels_with_their_choices(run, capsys, flag):
    assert run("serve", flag) == 0
    text = capsys.readouterr().out
    assert [name for name in re.findall(r"─ (\w+) ─", text) if name in SECTIONS] == list(SECTIONS)
    for choices in ("auto, float32, bfloat16, float16", "<int>, auto", "text, json", "fp8, w8a8"):
        assert choices in text
    rows = [line.removeprefix("│ ").split() for line in text.splitlines() if line.startswith("│ --")]
    assert {row[0] for row in rows}.isdisjoint(f"--{alias.replace('_', '-')}" for alias in ALIASES)


@pytest.mark.parametrize("words", [["serve"], ["check"], ["quality"], ["generate", "Tom"], ["frontier"]])
def test_a_model_is_an_argument_or_an_option(run, capsys, tmp_path, words):
    model = tmp_path / "nowhere"
    messages = []
    for spelling in ([model], ["--model", model], ["-m", model], [model, "--model", model]):
        assert run(*words, *spelling) == 1
        messages.append(capsys.readouterr().err.splitlines()[-1])
    assert len(set(messages)) == 1
    assert run(*words, model, "--model", "other") == 1
    assert f"model is '{model}', and --model is 'other'" in capsys.readouterr().err


def test_an_interrupt_while_the_commands_are_imported_ends_in_silence(tmp_path):
    """As of a terminal's Ctrl-C in the first seconds: the import of numpy raises it here."""
    (tmp_path / "numpy.py").write_text("raise KeyboardInterrupt")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(Path(__file__).parents[2])])}
    call = [sys.executable, "-m", "service.cli", "generate", "Tom", "--device", "cpu"]
    done = subprocess.run(call, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
