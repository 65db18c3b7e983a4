"""`quality` instead of a mode: over HTTP in this process, with a calibration file and without."""

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from service.api.models import Models
from service.errors import CheckpointError
from service.model import Checkpoint, load_checkpoint
from service.quality.presets import identity_of
from service.quality.schema import write_quality
from tests.gateway import apis
from tests.gateway.conftest import MakeGenerator
from tests.gateway.generate.helpers import ask, body, essence, frames, refused
from tests.gateway.helpers import assert_shape, over, page
from tests.plans import use_plan
from tests.quality.made_up import made_up_file

#: the plans of each quality in the made-up file
AUTO = {"mode": "speculative", "knobs": {"mrp_steps": "auto"}}
PRESETS = {
    "lossless": [AUTO],
    "balanced": [
        AUTO,
        *({"mode": mode, "knobs": {"threshold": at}} for mode, at in (("dynamic", 0.9), ("remask", 0.5))),
    ],
    "fast": [AUTO, {"mode": "dynamic", "knobs": {"threshold": 0.5}}],
}


@pytest.fixture
def calibrated(tmp_path: Path, checkpoint: Checkpoint) -> Checkpoint:
    shutil.copytree(checkpoint.path, tmp_path, dirs_exist_ok=True)
    identity = identity_of(tmp_path, checkpoint.config)
    write_quality(made_up_file(checkpoint=identity), tmp_path / "quality.json")
    return load_checkpoint(tmp_path)


@pytest.fixture
async def presets(make_generator: MakeGenerator, calibrated: Checkpoint) -> AsyncIterator[httpx.AsyncClient]:
    async with over(make_generator("r0", calibrated)) as http:
        yield http


class TestGenerate:
    @pytest.mark.parametrize(
        ("quality", "number"), [(quality, number) for quality, plans in PRESETS.items() for number in range(len(plans))]
    )
    async def test_an_answer_names_the_plan_that_ran(self, make_generator, calibrated, monkeypatch, quality, number):
        use_plan(monkeypatch, number)
        plan = PRESETS[quality][number]
        async with over(make_generator("r0", calibrated)) as presets:
            await self._check(presets, quality, plan)

    async def _check(self, presets, quality, plan):
        answer = await ask(presets, body(mode=None, quality=quality, seed=3))
        assert {name: answer[name] for name in ("mode", "knobs")} == plan
        explicit = body(mode=plan["mode"], seed=3) | plan["knobs"]
        assert essence(answer) == essence(await ask(presets, explicit))
        *_, (_, done) = await frames(presets, body(mode=None, quality=quality, seed=3))
        assert {name: done[name] for name in ("mode", "knobs")} == plan
        count = await page(presets)
        name = " ".join([plan["mode"], *(f"{knob}={value}" for knob, value in plan["knobs"].items())])
        assert count("mrp_request_quality_total", quality=quality, plan=name) == 2
        assert count("mrp_request_quality_total") == 2

    async def test_a_temperature_that_was_not_measured_is_lossless(self, presets):
        answer = await ask(presets, body(mode=None, quality="fast", temperature=0.5, seed=3))
        assert {name: answer[name] for name in ("mode", "knobs")} == AUTO

    async def test_a_threshold_alone_verifies_dynamic_and_the_answer_says_so(self, http):
        answer = await ask(http, body(mode=None, threshold=0.5, seed=1))
        ran = {"mrp_steps": "auto", "threshold": 0.5, "verify": "dynamic"}
        assert (answer["mode"], answer["knobs"]) == ("speculative", ran)
        assert answer["token_ids"] == (await ask(http, body(mode="dynamic", threshold=0.5, seed=1)))["token_ids"]
        *_, (_, done) = await frames(http, body(mode=None, threshold=0.5))
        assert done["knobs"] == ran

    @pytest.mark.parametrize(
        ("fields", "other"),
        [({"mode": "static"}, 'mode is "static"'), ({"mode": None, "threshold": 0.5}, "threshold is 0.5")],
    )
    async def test_a_quality_beside_a_mode_or_knob_is_refused(self, presets, fields, other):
        detail = await refused(presets, body(quality="fast", **fields))
        message = f'quality is "fast" and {other}, allowed is one of them: quality chooses the mode and its knobs'
        assert (detail["message"], detail["param"]) == (message, "quality")

    @pytest.mark.parametrize("value", ["best", 1, ["fast"], "Fast"])
    async def test_an_unknown_quality_is_refused(self, presets, value):
        detail = await refused(presets, body(mode=None, quality=value))
        assert detail["param"] == "quality"
        assert "'lossless', 'balanced' or 'fast'" in detail["message"]


class TestWithoutAFile:
    async def test_lossless_is_the_checkpoints_own(self, http):
        answer = await ask(http, body(mode=None, quality="lossless", seed=3))
        plain = await ask(http, body(mode="speculative", seed=3))
        assert [answer[name] for name in ("token_ids", "mode", "knobs")] == [
            plain[name] for name in ("token_ids", "mode", "knobs")
        ]

    @pytest.mark.parametrize("quality", ["balanced", "fast"])
    async def test_other_qualities_name_the_command_that_calibrates(self, http, quality):
        detail = await refused(http, body(mode=None, quality=quality))
        assert (detail["code"], detail["param"]) == ("quality_not_available", "quality")
        assert "this checkpoint has no quality.json; make one with `mrp-serve calibrate" in detail["message"]


class TestModels:
    async def test_models_have_presets_and_the_frontier(self, presets):
        listed = (await presets.get("/v1/models")).json()
        assert_shape(Models, listed)
        quality = listed["data"][0]["quality"]
        listed = {
            name: [{field: plan[field] for field in ("mode", "knobs")} for plan in plans]
            for name, plans in quality["presets"].items()
        }
        assert listed == PRESETS
        assert [plan["tokens_per_forward"] for plan in quality["presets"]["fast"]] == [1.1, 2.6]
        assert quality["missing"] is None
        assert quality["measured"]["scorer"] == "exact"
        assert [row["plan"]["mode"] for row in quality["frontier"]] == [
            "speculative", "dynamic", "remask", "dynamic", "dynamic"
        ]  # fmt: skip

    async def test_models_without_presets_have_the_reason(self, http):
        listed = (await http.get("/v1/models")).json()
        assert_shape(Models, listed)
        quality = listed["data"][0]["quality"]
        assert quality["presets"].keys() == {"lossless"}
        assert "calibrate" in quality["missing"]
        assert (quality["measured"], quality["frontier"]) == (None, [])


class TestLoading:
    def test_a_broken_file_is_an_error(self, make_generator, calibrated):
        (calibrated.path / "quality.json").write_text('{"version": 7}', "utf-8")
        with pytest.raises(CheckpointError, match=r"quality\.json is no calibration file of version 4: version"):
            make_generator("r0", calibrated)

    async def test_the_setting_names_another_file(self, make_generator, calibrated, tmp_path):
        (calibrated.path / "quality.json").rename(tmp_path / "mine.json")
        async with over(make_generator("r0", calibrated, quality_file=tmp_path / "mine.json")) as http:
            answer = await ask(http, body(mode=None, quality="fast"))
            assert {name: answer[name] for name in ("mode", "knobs")} in PRESETS["fast"]
        with pytest.raises(CheckpointError, match="cannot be read"):
            make_generator("r0", calibrated, quality_file=tmp_path / "other.json")


class TestOpenAi:
    @pytest.mark.parametrize(("path", "request_"), [(apis.COMPLETIONS, apis.completion), (apis.CHAT, apis.chat)])
    async def test_openais_routes_have_qualities(self, presets, path, request_):
        [choice] = (await apis.ask(presets, path, request_(quality="fast")))["choices"]
        assert {name: choice["stats"][name] for name in ("mode", "knobs")} in PRESETS["fast"]
        detail = await apis.refused(presets, path, request_(quality="fast", mrp_steps=2))
        assert detail["param"] == "quality"
