"""The frontier and the presets of invented rows."""

import pytest

from service.decode.mode import DecodingMode
from service.decode.modes import Dynamic, Remask, Speculative, Static
from service.quality.calibration.pareto import SAMPLED, choose, is_lossless, warnings_of, with_frontier
from service.quality.schema import Margins, PlanResult
from tests.quality.made_up import CHOSEN_AT, LOADS, PROMPTS, ROWS, at_temperature, row, speed

STATIC = row(Static(), 1000)


def chosen(*rows: PlanResult, **margins: float) -> dict[str, str]:
    return {name: point.plan.name for name, point in choose(rows, CHOSEN_AT, Margins(**margins)).items()}


def best(point: PlanResult, load: int = CHOSEN_AT) -> bool:
    return point.speed_at(load).on_frontier


def warnings(*rows: PlanResult) -> list[str]:
    return warnings_of(rows, choose(rows, CHOSEN_AT, Margins()), CHOSEN_AT, Margins())


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
        names = [point.plan.name for point in with_frontier(ROWS, LOADS) if best(point)]
        assert names == [
            "static tokens_per_step=1", "dynamic threshold=0.9", "dynamic threshold=0.5", "dynamic threshold=0.3",
            "remask threshold=0.5",
        ]  # fmt: skip

    def test_hangs_on_the_concurrency(self) -> None:
        alone = row(Speculative(2), 900, speed=[speed(1, 900), speed(16, 900)])
        marked = with_frontier([STATIC, alone], LOADS)
        assert [best(point, 1) for point in marked] == [False, True]
        assert [best(point, 16) for point in marked] == [True, False]


class TestPresets:
    def test_are_the_fastest_within_their_margins(self) -> None:
        assert chosen(*ROWS) == {
            "lossless": "static tokens_per_step=1",
            "balanced": "remask threshold=0.5",
            "fast": "dynamic threshold=0.5",
        }

    def test_the_margin_itself_is_within(self) -> None:
        assert chosen(STATIC, row(Dynamic(0.5), 2000, lost=10))["balanced"] == "dynamic threshold=0.5"
        assert chosen(STATIC, row(Dynamic(0.5), 2000, lost=11))["balanced"] == "static tokens_per_step=1"

    def test_a_loss_at_any_temperature_counts(self) -> None:
        """At temperatures above 0, plans have presets of their own. What is unknown there is in none."""
        steady = row(Dynamic(0.9), 1500, sampled=[at_temperature(0.1, lost=8), at_temperature(0.7, lost=10)])
        worse = row(Dynamic(0.5), 2000, sampled=[at_temperature(0.1, lost=250), at_temperature(0.7, gained=9)])
        some = row(Dynamic(0.7), 1800, sampled=[at_temperature(0.1), at_temperature(0.7, lost=50)])
        rows = [STATIC, row(Speculative(2), 1100), steady, worse, some, row(Remask(0.9), 1900)]
        assert set(chosen(*rows).values()) == {"speculative mrp_steps=2", "dynamic threshold=0.5"}
        assert {name: point.plan.name for name, point in choose(rows, CHOSEN_AT, Margins(), SAMPLED).items()} == {
            "lossless": "speculative mrp_steps=2",
            "balanced": "dynamic threshold=0.9",
            "fast": "dynamic threshold=0.7",
        }

    def test_lossless_may_be_speculative_but_never_what_only_looks_so(self) -> None:
        rows = [STATIC, row(Speculative(2), 1400), row(Dynamic(0.9), 1900), row(Speculative(2, threshold=0.9), 2500)]
        assert chosen(*rows)["lossless"] == "speculative mrp_steps=2"

    def test_of_speeds_within_the_noise_the_more_accurate_is_taken(self) -> None:
        near = [row(Dynamic(0.9), 2000, lost=1), row(Dynamic(0.8), 2040, lost=8)]
        assert chosen(STATIC, *near)["balanced"] == "dynamic threshold=0.9"
        assert chosen(STATIC, *near, tie=0.0)["balanced"] == "dynamic threshold=0.8"

    def test_of_equals_the_one_that_saves_forwards_is_taken(self) -> None:
        tied = row(Speculative(2), 985, tokens_per_forward=1.8)
        assert chosen(STATIC, tied)["lossless"] == "speculative mrp_steps=2"


class TestWarnings:
    def test_too_few_prompts_for_the_margin(self) -> None:
        plans = warnings(STATIC, row(Dynamic(0.9), 1800, gained=45, lost=50))
        [balanced] = [line for line in plans if line.startswith("balanced")]
        assert "is -0.5 points from static on 1000 prompts, give or take 1.9" in balanced
        assert "more than the margin of 1: take more prompts" in balanced

    def test_the_interval_reaches_over_the_margin(self) -> None:
        plans = warnings(STATIC, row(Dynamic(0.9), 1800, lost=8))
        assert plans == [
            "balanced: 'dynamic threshold=0.9' may be as far as -1.4 points from static, over the margin of 1"
        ]

    def test_name_the_temperature_of_an_uncertain_loss(self) -> None:
        rows = [STATIC, row(Dynamic(0.9), 1800, sampled=[at_temperature(0.1), at_temperature(0.7, lost=8)])]
        assert warnings(*rows) == []
        sampled = choose(rows, CHOSEN_AT, Margins(), SAMPLED)
        assert warnings_of(rows, sampled, CHOSEN_AT, Margins(), SAMPLED) == [
            (
                "balanced: 'dynamic threshold=0.9' at temperature 0.7 may be as far as -1.4 points from static, over "
                "the margin of 1"
            )
        ]

    def test_lossless_plans_that_are_not_identical(self) -> None:
        rounded = row(Speculative(2), 900, identical=PROMPTS - 3)
        assert warnings(STATIC, rounded) == [
            "'speculative mrp_steps=2': 3 of 1000 answers are not static's, by rounding"
        ]
