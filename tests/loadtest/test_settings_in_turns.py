"""Serve's settings beside each other: which, in what order, and the table. No service is started."""

import asyncio
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from loadtest.settings import __main__ as program
from loadtest.settings.known import SETTINGS, SHIPPED, changed, chosen, turns
from loadtest.settings.table import Found, table

LOOP = "control loop every 0.5 s"


def test_the_service_as_shipped_is_always_among_them():
    assert chosen(LOOP) == [SHIPPED, LOOP]
    assert chosen(",".join(SETTINGS)) == list(SETTINGS)
    with pytest.raises(ValueError, match=r"\['nothing'\]; allowed: as shipped, "):
        chosen("nothing")


def test_each_round_has_all_settings_and_begins_with_another():
    names = list("abc")
    made = list(turns(names, 4))
    rounds = [[name for number, name in made if number == wanted] for wanted in range(4)]
    assert [sorted(one) for one in rounds] == [names] * 4
    assert [one[0] for one in rounds] == ["a", "b", "c", "a"]


def test_every_variable_is_one_that_serve_knows():
    from ray.serve._private import constants

    variables = {name for setting in SETTINGS.values() for name in setting.environment if name != "PYTHONPATH"}
    source = Path(constants.__file__).read_text("utf-8")
    assert variables
    assert [name for name in sorted(variables) if f'"{name}"' not in source] == []


@pytest.mark.parametrize("name", list(SETTINGS))
def test_a_setting_is_undone_after_its_turn(name):
    before = dict(os.environ)
    with changed(name) as (environment, flags):
        assert bool(environment or flags) == (name != SHIPPED)
        programs = [Path(value) for variable, value in environment.items() if variable.endswith("_BINARY_PATH")]
        assert all(os.access(path, os.X_OK) and "-dS" in path.read_text("utf-8") for path in programs)
    assert os.environ == before
    assert bool(programs) == ("HAProxy" in name)
    assert not any(path.exists() for path in programs)


@pytest.mark.parametrize(("name", "cloudpickle"), [(SHIPPED, False), ("handles by cloudpickle", True)])
def test_what_handles_serialise_by(name, cloudpickle):
    """Serve's own serializer, in a process with the environment of the setting."""
    module = "ray.serve._private.serialization"
    ask = f"import {module} as m; print(m.RPCSerializer('pickle', 'pickle')._request_dumps is m.cloudpickle.dumps)"
    with changed(name) as (environment, _):
        variables = {**os.environ, **environment}
        said = subprocess.run([sys.executable, "-c", ask], env=variables, capture_output=True, text=True, check=True)
    assert said.stdout.split() == [str(cloudpickle)]


def test_the_table_has_medians_and_the_differences_within_a_round():
    one = Found(SHIPPED, 0, lone_more_p50_ms=8.0, lone_more_p99_ms=30.0, tokens_per_s=1400.0, rest_cpu_ms=90.0)
    found = [one, replace(one, round=1, lone_more_p50_ms=12.0), replace(one, round=2, lone_more_p50_ms=10.0)]
    found += [
        replace(one, setting=LOOP, round=number, lone_more_p50_ms=ms) for number, ms in enumerate((7.0, 11.5, 30.0))
    ]
    found += [Found("both", 0, error="the service ended with 1")]
    heading, _, shipped, loop, both, proxy = table(found, [SHIPPED, LOOP, "both", "Serve's proxy"]).splitlines()
    assert shipped.startswith(f"| {SHIPPED} | 3 | 10.00 | 30.0 | 1400 |")
    assert loop.startswith(f"| {LOOP} | 3 | 11.50 (-0.50) | 30.0 (+0.0) | 1400 (+0) |")
    assert both.startswith("| both | 0 | the service ended with 1 |")
    assert proxy.startswith("| Serve's proxy | 0 | not measured |")
    assert {line.count("|") for line in (heading, shipped, loop, both, proxy)} == {8}


def test_a_service_that_does_not_start_is_a_row_and_the_exit_status(tmp_path, monkeypatch, capsys):
    def refuses(*_, **__):
        raise SystemExit("the service ended with 1")

    monkeypatch.setattr(program, "service", refuses)
    monkeypatch.setattr(program, "Alone", lambda *_, **__: None)
    arguments = program.parse(["--only", LOOP, "--rounds", "2", "--out", str(tmp_path)])
    assert asyncio.run(program.run(arguments)) == 1
    assert (tmp_path / "rows.jsonl").read_text("utf-8").count("the service ended with 1") == 4
    assert (tmp_path / "table.md").read_text("utf-8").count("the service ended with 1") == 2
    assert '"error": "the service ended with 1"' in capsys.readouterr().out
