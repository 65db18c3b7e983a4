"""The presets of a checkpoint: of its own file, of a named file, or only lossless with the reason."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from service.decode.modes import Speculative
from service.errors import CheckpointError, QualityNotAvailable
from service.model import ModelConfig, parse_config, read_config
from service.quality.presets import Presets, identity_of, presets_of, weights_fingerprint
from service.quality.schema import QUALITIES, PlanResult, QualityName, write_quality
from tests.quality.made_up import MEASURED, made_up_file
from tests.tiny import GOLDEN

DEFAULT = "speculative mrp_steps=auto"


def names(presets: Presets, quality: QualityName, temperature: float) -> list[str]:
    return [plan.name for plan in presets.plans_for(quality, temperature)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copytree(GOLDEN / "sdar-mrp-random-a", tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def config(folder: Path) -> ModelConfig:
    return parse_config(read_config(folder))


def test_lossless_is_there_without_a_file(folder: Path, config: ModelConfig) -> None:
    presets = presets_of(folder, config)
    [plan] = presets.plans_for("lossless", 0)
    assert (plan.decoding_mode, plan.tokens_per_forward) == (Speculative("auto"), 1.0)
    assert presets_of(folder, replace(config, mrp=None)).plans == presets.plans
    with pytest.raises(QualityNotAvailable) as caught:
        presets.plans_for("fast", 0)
    assert caught.value.message.startswith(
        "quality is 'fast', allowed are lossless: this checkpoint has no quality.json"
    )
    assert "mrp-serve calibrate --model" in caught.value.message
    assert (caught.value.status, caught.value.param) == (422, "quality")


def test_the_file_beside_the_weights_is_found(folder: Path, config: ModelConfig) -> None:
    file = made_up_file(checkpoint=identity_of(folder, config))
    write_quality(file, folder / "quality.json")
    presets = presets_of(folder, config)
    assert presets.measured == file.measured.model_dump()
    assert [PlanResult(**row) for row in presets.frontier] == file.frontier
    assert presets.plans_for("fast", 0) == tuple(file.presets["fast"])


def test_above_the_highest_measured_temperature_every_quality_is_lossless(folder: Path, config: ModelConfig) -> None:
    """Also if it was measured at temperature 0 only."""
    for temperatures, preset in (([0.0], 0.0), ([0.0, 0.1, 0.7], 0.7)):
        measured = MEASURED.model_copy(update={"temperatures": temperatures})
        sampled = made_up_file().presets if preset else made_up_file().sampled_presets
        file = made_up_file(checkpoint=identity_of(folder, config), measured=measured, sampled_presets=sampled)
        write_quality(file, folder / "quality.json")
        presets = presets_of(folder, config)
        assert names(presets, "fast", preset) == [DEFAULT, "dynamic threshold=0.5"]
        assert names(presets, "balanced", preset) == [DEFAULT, "dynamic threshold=0.9", "remask threshold=0.5"]
        for quality in QUALITIES:
            assert names(presets, quality, preset + 0.01) == [DEFAULT]


def test_a_named_file_comes_first(folder: Path, config: ModelConfig, tmp_path: Path) -> None:
    write_quality(made_up_file(), folder / "quality.json")
    write_quality(made_up_file(checkpoint=identity_of(folder, config)), tmp_path / "mine.json")
    assert presets_of(folder, config, tmp_path / "mine.json").missing is None
    with pytest.raises(CheckpointError, match=r"other\.json cannot be read"):
        presets_of(folder, config, tmp_path / "other.json")


def test_a_file_of_other_weights_is_not_used(folder: Path, config: ModelConfig) -> None:
    write_quality(made_up_file(checkpoint=identity_of(folder, config)), folder / "quality.json")
    weights = folder / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-4096:] = bytes(4096)
    weights.write_bytes(content)
    presets = presets_of(folder, config)
    assert "was made for another checkpoint (weights differ)" in (presets.missing or "")
    assert names(presets, "lossless", 0) == [DEFAULT]


def test_the_fingerprint_reads_all_of_a_small_file(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(bytes(10_000))
    before = weights_fingerprint(tmp_path)
    for path in (0, 5_000, 9_999):
        content = bytearray(10_000)
        content[path] = 1
        (tmp_path / "model.safetensors").write_bytes(content)
        assert weights_fingerprint(tmp_path) != before
    (tmp_path / "model.safetensors").write_bytes(bytes(10_000))
    assert weights_fingerprint(tmp_path) == before


def test_nor_one_of_other_ranks_where_they_divide_activations(folder: Path, config: ModelConfig) -> None:
    """Such ranks have files of their own, and a file that is named is known to be another's."""
    small = replace(config, quantization="w8a8")
    write_quality(made_up_file(checkpoint=identity_of(folder, small)), folder / "quality.w8a8.json")
    assert presets_of(folder, small).missing is None
    assert "has no quality.w8a8-2.json" in (presets_of(folder, small, None, 2).missing or "")
    named = presets_of(folder, small, folder / "quality.w8a8.json", 2)
    assert "(activation_parts differ)" in (named.missing or "")
