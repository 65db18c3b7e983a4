"""The differences of two trainings are named by the program's options."""

from dataclasses import fields
from pathlib import Path

from training.config import Budget, Keeping, Module, Source, TrainingConfig
from training.differences import NAMES, as_options, differences
from training.lessons import Objective, phases_up_to
from training.losses import Weights
from training.optim import Schedule

#: what no option sets
FIXED = {"objective.sampled", "objective.two_picks"}


def matters(unroll=2, block_size=None, **module):
    source = Source("backbone", Path("data.jsonl"), block_size)
    objective = Objective(phases_up_to(unroll, Weights(1.0, 0.5, 0.0)))
    plan = TrainingConfig(source, objective, Schedule(3e-3), Budget(10), Keeping(Path("out")), Module(**module))
    return plan.what_matters()


def test_all_of_a_plan_has_the_name_of_an_option():
    options = as_options({**matters(), "source.lines": 3})
    assert set(options) == set(NAMES) | FIXED
    assert {f"objective.{weight.name}" for weight in fields(Weights)} <= set(options)


def test_another_recipe_is_named():
    published = {**matters(), "objective.inverse_rate": True, "schedule.cosine": True, "budget.matrices": "adamw"}
    assert differences(matters(), published) == ["--recipe was default, is published"]


def test_differences_are_options_with_both_values():
    assert differences(matters(), matters(unroll=4, block_size=8, residual=False)) == [
        "--block-size was not given, is 8",
        "--direct was no, is yes",
        "--unroll was 2, is 4",
    ]


def test_the_same_options_with_other_phases_are_not_the_same_training():
    earlier = matters(unroll=3)
    earlier["objective.phases"] = earlier["objective.phases"][1:]
    assert differences(earlier, matters(unroll=3)) == ["another version of the program began it"]
