"""Scenarios: those shipped can be read, wrong ones say what is allowed, options reach locust."""

import argparse
import shlex

import pytest

from loadtest.generator import options
from loadtest.report.scenario import FOLDER, Run, parse, read
from loadtest.run import parse as parse_arguments


def locusts_options(run):
    """What locust's parser makes of a run's options, without locust."""
    parser = argparse.ArgumentParser()
    parser.add_argument("users", nargs="*")
    options.add(parser)
    return parser.parse_args(list(run.options()))


@pytest.mark.parametrize("name", sorted(file.stem for file in FOLDER.glob("*.yaml")))
def test_every_shipped_scenario_is_one_locust_can_run(name):
    scenario = read(name)
    for run in scenario.runs:
        plan = options.RunOptions.of(locusts_options(run))
        assert plan.loop == run.loop
        assert plan.profile == run.profile
        assert plan.workload.plans


def test_the_default_scenario_is_short():
    assert read("default").seconds < 160


def test_all_fields_of_a_run_reach_locust():
    run = Run(
        "x", "5:2", "StreamUser,ChatUser", "static:1", lengths="fixed:9", exact=True, temperature=0.5, think_s=0.25
    )
    parsed = locusts_options(run)
    assert parsed.users == ["StreamUser", "ChatUser"]
    assert (parsed.modes, parsed.levels, parsed.lengths, parsed.exact) == ("static:1", "5:2", "fixed:9", True)
    assert (parsed.temperature, parsed.think_s, parsed.workload_seed) == (0.5, 0.25, 17)


def test_rates_are_multiples_of_another_runs():
    run = Run("arrivals", "5:0.5,5:1-2", loop="open", of="static").scaled(8.0)
    assert (run.levels, run.of) == ("5:4,5:8-16", "")


def test_recorded_arrivals_are_one_level(tmp_path):
    file = tmp_path / "trace.jsonl"
    file.write_text("0\n1\n4\n")
    run = parse({"title": "t", "runs": [{"name": "a", "loop": "trace", "trace": str(file)}]}, "x").runs[0]
    assert str(run.profile) == "4:0.75"
    plan = options.RunOptions.of(locusts_options(run))
    assert (plan.profile, plan.seconds) == (run.profile, 4.0)


def test_what_a_run_needs():
    assert Run("x", "5:1", modes="static:1,remask@threshold=0.5:2,default").needs == {"static", "remask"}


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"title": "t"}, "there must be one"),
        ({"title": "t", "runs": [{"name": "a", "levels": "5:1"}] * 2}, "every name once"),
        ({"title": "t", "runs": [{"name": "a", "levels": "x"}]}, "allowed: SECONDS:LEVEL"),
        ({"title": "t", "runs": [{"name": "a", "levels": "5:1", "speed": 3}]}, "speed in run; allowed: name"),
        ({"title": "t", "runs": [{"name": "a"}]}, "levels ''"),
        ({"title": "t", "runs": [{"name": "a", "levels": "5:1", "of": "b"}]}, "does not come before"),
        ({"title": "t", "colour": 1, "runs": [{"name": "a", "levels": "5:1"}]}, "colour in scenario; allowed: title"),
        (
            {"title": "t", "slo": {"x": 1}, "runs": [{"name": "a", "levels": "5:1"}]},
            "x in slo; allowed: first_block_ms",
        ),
    ],
)
def test_wrong_scenarios_say_what_is_allowed(values, said):
    with pytest.raises(ValueError, match=said):
        parse(values, "file.yaml")


def test_an_unknown_scenario_names_those_there_are():
    with pytest.raises(ValueError, match="one of default"):
        read("nothing")


def test_the_programs_options():
    parsed = parse_arguments(shlex.split("--scenario full --fail-if failed>0 --fail-if 'static:good_share<0.9'"))
    assert parsed.fail_if == ["failed>0", "static:good_share<0.9"]
