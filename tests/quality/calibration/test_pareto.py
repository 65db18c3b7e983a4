"""The frontier and the presets of invented rows."""

import pytest

from service.decode.mode import DecodingMode
from service.decode.modes import Direct, Dynamic, Edit, Remask, Sequential, Speculative, Static
from service.quality.calibration.pareto import GREEDY, SAMPLED, AccuracyDifference, choose, is_lossless, warnings_of
from service.quality.schema import Margins, PlanResult
from tests.quality.made_up import PROMPTS, ROWS, at_temperature, made_up_file, row

STATIC, AUTO = row(Static(), 1.0), row(Speculative(), 1.1)
DEFAULT = "speculative mrp_steps=auto"


def chosen(*rows: PlanResult, difference: AccuracyDifference = GREEDY) -> dict[str, list[str]]:
    """The names of each preset's plans after the first one, which is the same in all."""
    presets = choose([STATIC, AUTO, *rows], Margins(), difference)
    assert {name: points[0].plan.name for name, points in presets.items()} == dict.fromkeys(presets, DEFAULT)
    return {name: [point.plan.name for point in points[1:]] for name, points in presets.items()}


def warnings(*rows: PlanResult, difference: AccuracyDifference = GREEDY) -> list[str]:
    rows = (STATIC, AUTO, *rows)
    return warnings_of(rows, choose(rows, Margins(), difference), Margins(), difference)


class TestLossless:
    @pytest.mark.parametrize(
        ("mode", "so"),
        [
            (Static(), True),
            (Static(2), False),
            (Speculative(0, max_drafts=4), True),
            (Speculative(2, tokens_per_step=2), False),
            (Speculative(2, threshold=1.0), False),
            (Speculative(2, verify="static"), True),
            (Speculative(2, verify="sequential"), False),
            (Speculative(4, margin=1.0), False),
            (Remask(1.0), False),
        ],
    )
    def test_is_what_gives_statics_output_by_construction(self, mode: DecodingMode, so: bool) -> None:
        assert is_lossless(mode) == so


class TestFrontier:
    def test_has_what_nothing_else_beats(self) -> None:
        assert [(point.plan.name, point.tokens_per_forward) for point in made_up_file().frontier] == [
            (DEFAULT, 1.1), ("dynamic threshold=0.9", 1.8), ("remask threshold=0.5", 2.0),
            ("dynamic threshold=0.5", 2.6), ("dynamic threshold=0.3", 3.0),
        ]  # fmt: skip


class TestPresets:
    def test_have_the_plans_within_their_margins(self) -> None:
        assert chosen(*ROWS[2:]) == {
            "lossless": [],
            "balanced": ["dynamic threshold=0.9", "remask threshold=0.5"],
            "fast": ["dynamic threshold=0.5"],
        }

    def test_the_whole_interval_is_within_the_margin(self) -> None:
        assert row(Dynamic(0.5), 2.0, lost=5).difference_low > -0.01 > row(Dynamic(0.5), 2.0, lost=6).difference_low
        assert chosen(row(Dynamic(0.5), 2.0, lost=5))["balanced"] == ["dynamic threshold=0.5"]
        assert chosen(row(Dynamic(0.5), 2.0, lost=6))["balanced"] == []

    def test_a_loss_at_any_temperature_counts(self) -> None:
        """At temperatures above 0, presets have plans of their own. What is unknown there is in none."""
        steady = row(Dynamic(0.9), 1.5, sampled=[at_temperature(0.1, lost=2), at_temperature(0.7, lost=3)])
        worse = row(Dynamic(0.5), 2.0, sampled=[at_temperature(0.1, lost=250), at_temperature(0.7, gained=9)])
        some = row(Dynamic(0.7), 1.8, sampled=[at_temperature(0.1), at_temperature(0.7, lost=30)])
        rows = [steady, worse, some, row(Dynamic(0.8), 1.9)]
        assert chosen(*rows) == {"lossless": [], "balanced": [worse.plan.name], "fast": [worse.plan.name]}
        assert chosen(*rows, difference=SAMPLED) == {
            "lossless": [],
            "balanced": ["dynamic threshold=0.9"],
            "fast": ["dynamic threshold=0.7"],
        }

    def test_of_plans_with_one_price_the_one_with_the_most_tokens_stays(self) -> None:
        """The price of a plan is its number of MRP forwards after a forward of the backbone."""
        free = [row(Dynamic(0.9), 1.3), row(Dynamic(0.8), 1.4), row(Sequential(), 1.0), row(Edit(), 0.8)]
        once, twice = [row(Direct(1), 1.9), row(Remask(0.9), 1.8)], [row(Direct(2), 2.6), row(Direct(2, 0.5), 2.0)]
        assert chosen(*free, *once, *twice)["balanced"] == [
            "dynamic threshold=0.8",
            "direct mrp_steps=1",
            "direct mrp_steps=2",
        ]

    def test_a_plan_that_a_cheaper_one_beats_is_left_out(self) -> None:
        assert chosen(row(Dynamic(0.8), 2.0), row(Direct(1), 1.9))["balanced"] == ["dynamic threshold=0.8"]

    def test_of_drafting_plans_the_engine_must_be_free_to_choose_the_drafts(self) -> None:
        """A margin makes the answers depend on the drafts, so such drafts cannot be chosen by the load."""
        fixed = [row(Speculative(2), 2.5), row(Speculative(1, threshold=0.9), 2.5)]
        assert chosen(*fixed, row(Speculative("auto", margin=0.5), 3.0))["fast"] == []

    def test_drafts_replace_the_plan_that_they_verify(self) -> None:
        plain, other, drafting = row(Dynamic(0.7), 1.4), row(Direct(1), 1.9), row(Speculative(threshold=0.7), 1.5)
        assert chosen(plain, other, drafting)["balanced"] == [drafting.plan.name, "direct mrp_steps=1"]
        assert chosen(plain, other, row(Speculative(threshold=0.7), 1.09))["balanced"] == [
            "dynamic threshold=0.7",
            "direct mrp_steps=1",
        ]

    def test_have_five_plans_at_most(self) -> None:
        rows = [row(Dynamic(0.8), 1.2), *(row(Direct(steps), 1.5 + steps) for steps in (1, 2, 3, 4))]
        assert chosen(*rows)["fast"] == [f"direct mrp_steps={steps}" for steps in (1, 2, 3, 4)]


class TestWarnings:
    def test_a_faster_plan_whose_interval_reaches_over_the_margin(self) -> None:
        assert warnings(row(Dynamic(0.9), 1.8, lost=8)) == [
            (
                "balanced lacks 'dynamic threshold=0.9': -0.8 points from static, perhaps -1.4; more than 1000 "
                "prompts may admit it"
            )
        ]

    def test_no_plan_that_is_slower_or_beyond_the_margin(self) -> None:
        assert warnings(row(Dynamic(0.9), 1.8), row(Dynamic(0.8), 1.7, lost=8), row(Dynamic(0.7), 1.9, lost=70)) == []

    def test_name_the_temperature_of_an_uncertain_loss(self) -> None:
        plan = row(Dynamic(0.9), 1.8, sampled=[at_temperature(0.1), at_temperature(0.7, lost=8)])
        assert warnings(plan) == []
        assert warnings(plan, difference=SAMPLED) == [
            (
                "balanced lacks 'dynamic threshold=0.9': -0.8 points from static at temperature 0.7, perhaps -1.4; "
                "more than 1000 prompts may admit it"
            )
        ]

    def test_lossless_plans_that_are_not_identical(self) -> None:
        rounded = row(Speculative(2), 1.9, identical=PROMPTS - 3)
        assert warnings(rounded) == ["'speculative mrp_steps=2': 3 of 1000 answers are not static's, by rounding"]
