"""Presets by load: the bands of a made-up calibration, which plan a load gets, and when it changes."""

import pytest

from service.decode.modes import Dynamic, Static
from service.quality.calibration.pareto import assemble
from service.quality.load_bands import LoadHysteresis, at_load, bands_of, in_words
from service.quality.presets import Presets
from service.quality.schema import Band, Plan
from tests.quality.made_up import BY_LOAD, IDENTITY, MEASURED

STATIC, QUICK = Plan.from_mode(Static()), Plan.from_mode(Dynamic(0.5))


class TestBands:
    def test_meet_at_the_geometric_mean_of_their_loads(self) -> None:
        bands = bands_of([(1, STATIC), (8, QUICK), (32, STATIC)])
        assert [(band.plan, band.up_to) for band in bands] == [(STATIC, 2.83), (QUICK, 16.0), (STATIC, None)]

    def test_of_one_plan_are_one(self) -> None:
        assert [band.up_to for band in bands_of([(1, STATIC), (8, STATIC), (32, QUICK)])] == [16.0, None]
        assert bands_of([(1, QUICK), (8, QUICK)]) == [Band(mode="dynamic", knobs={"threshold": 0.5})]
        assert len(bands_of([(16, STATIC)])) == 1

    @pytest.mark.parametrize(("load", "plan"), [(0.1, STATIC), (1, STATIC), (2.83, STATIC), (2.84, QUICK), (99, QUICK)])
    def test_give_a_load_its_plan(self, load: float, plan: Plan) -> None:
        assert at_load(bands_of([(1, STATIC), (8, QUICK)]), load) == plan


class TestACalibration:
    def test_chooses_at_every_load(self) -> None:
        file = assemble(IDENTITY, MEASURED, BY_LOAD)
        assert {name: in_words(bands) for name, bands in file.presets.items()} == {
            "lossless": "speculative mrp_steps=2 up to 4 requests, static tokens_per_step=1 above",
            "balanced": "dynamic threshold=0.9 up to 4 requests, remask threshold=0.5 above",
            "fast": "dynamic threshold=0.9 up to 4 requests, remask threshold=0.5 above",
        }

    def test_names_the_load_of_a_noisy_speed(self) -> None:
        noisy = [
            row.model_copy(update={"speed": [s.model_copy(update={"speedup_low": 0}) for s in row.speed]})
            for row in BY_LOAD
        ]
        messages = assemble(IDENTITY, MEASURED, noisy).warnings
        assert [line.partition(" is uncertain")[0] for line in messages if line.startswith("lossless")] == [
            "lossless: the speed of 'speculative mrp_steps=2', 1 together,",
            "lossless: the speed of 'static tokens_per_step=1', 16 together,",
        ]


class TestPresets:
    def test_are_those_of_a_lone_request_unless_a_load_is_said(self) -> None:
        presets = Presets({"fast": tuple(bands_of([(1, STATIC), (16, QUICK)]))})
        assert (presets.plan("fast", 0), presets.plans) == (STATIC, {"fast": STATIC})
        assert (presets.at(4).plan("fast", 0), presets.at(4.1).plan("fast", 0)) == (STATIC, QUICK)
        assert presets.at(5).at(1) == presets


class TestLoadHysteresis:
    def followed(self, *loads: float) -> list[float]:
        steady = LoadHysteresis()
        return [round(steady.follow(load), 3) for load in loads]

    def test_follows_what_leaves_its_surroundings(self) -> None:
        assert self.followed(*[1, 2, 3, 4, 3, 2, 1]) == [1, 1.6, 2.4, 3.2, 3.2, 2.5, 1.25]

    def test_a_band_is_left_a_quarter_beyond_its_bound_only(self) -> None:
        bands, steady = bands_of([(1, STATIC), (16, QUICK)]), LoadHysteresis()
        loads = [1, 2, 3, 4, 5, 5, 6, 5, 4, 5, 4, 3, 4, 5, 6]
        seen = [at_load(bands, steady.follow(load)).mode for load in loads]
        assert seen == ["static"] * 6 + ["dynamic"] * 5 + ["static"] * 3 + ["dynamic"]
