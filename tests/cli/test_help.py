"""What `--help` says is so."""

import inspect
import re
from pathlib import Path

import pytest

from service.bench.grid import default_plans
from service.cli import calibrate, generate, loads
from service.decode.knobs import knobs_in
from service.decode.modes import KNOBS, MODES

PERFORMANCE = (Path(__file__).parents[2] / "docs" / "performance.md").read_text("utf-8")


def helps(command):
    """The help of every option, by name."""
    parameters = inspect.signature(command, eval_str=True).parameters
    return {
        name: one.annotation.__metadata__[0].help
        for name, one in parameters.items()
        if one.annotation not in (int, float)
    }


@pytest.mark.parametrize("knob", sorted({name for params in MODES.values() for name in knobs_in(params)}))
def test_a_knobs_help_begins_with_the_modes_that_use_it(knob):
    users = [mode for mode, params in MODES.items() if knob in knobs_in(params)]
    assert set(helps(generate.command)[knob].partition(":")[0].split(", ")) == set(users)


def test_generate_names_all_modes():
    assert helps(generate.command)["mode"].startswith(", ".join(MODES))


def test_generate_has_an_option_for_every_knob_and_says_whose_it_is():
    for name in KNOBS:
        modes = [mode for mode, params in MODES.items() if name in knobs_in(params)]
        assert helps(generate.command)[name].startswith(", ".join(modes) + ": ")


def test_loads_says_one_default_of_threads():
    assert "half the cores" not in helps(loads.command)["threads"]
    assert inspect.signature(loads.command).parameters["threads"].default == 1


@pytest.mark.parametrize("option", ["concurrency", "timed"])
def test_calibrate_says_how_many_prompts_must_be_timed(option):
    assert "half" in helps(calibrate.command)[option] or "twice" in helps(calibrate.command)[option]


def test_the_table_of_modes_has_the_rows_that_eval_prints():
    table = PERFORMANCE.split("| mode | accuracy | tokens/forward | ms/token |", 1)[1].split("\n\n", 1)[0]
    rows = re.findall(r"^\| `(\w+)`(.*?) \|", table, re.MULTILINE)
    plans = [plan for plan in default_plans(with_mrp=True) if plan.engine == "mrp"]
    assert [mode for mode, _ in rows] == [plan.params.mode for plan in plans]
    for (_, knobs), plan in zip(rows, plans, strict=True):
        assert set(knobs.split()) <= set(plan.name.split())
