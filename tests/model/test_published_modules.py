"""The nine published MRP modules: config files as published, known by their names."""

import json
import re
from pathlib import Path
from shutil import copy
from typing import Any

import pytest
import torch

from service.errors import CheckpointError
from service.model import LoadOptions, parse_config, save_checkpoint
from service.model.checkpoint import config_of
from service.model.files import display_name, pinned, read_config, revision_of
from tests.tiny import GOLDEN, GOLDEN_NAMES, tiny_checkpoint, tiny_config

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "modules.md"
#: config.json of 1.7B in the published repository, src/models/SDAR-1.7B-MRP
PUBLISHED: dict[str, Any] = json.loads((Path(__file__).parent / "published_config.json").read_text("utf-8"))
_LARGE = {"num_hidden_layers": 36, "max_window_layers": 36, "num_attention_heads": 32}
SIZES: dict[str, dict[str, Any]] = {
    "1_7b": {},
    "4b": {**_LARGE, "hidden_size": 2560, "intermediate_size": 9728, "block_size": 4},
    "8b": {**_LARGE, "hidden_size": 4096, "intermediate_size": 12288},
}
#: the end of a name -> residual, scale
KINDS = {"": (True, 1.0), "-k2": (True, 2.0), "-direct": (False, 1.0)}
NAMES = [f"sdar-{size}-mrp-3lyr{kind}" for size in SIZES for kind in KINDS]
EVERY_NAME = pytest.mark.parametrize("name", NAMES)


def published(name: str) -> dict[str, Any]:
    return PUBLISHED | SIZES[name.split("-")[1]]


def kind_of(name: str) -> tuple[bool, float]:
    return KINDS[name.partition("-mrp-3lyr")[2]]


def write(folder: Path, raw: dict[str, Any]) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(raw))
    return folder


@EVERY_NAME
@pytest.mark.parametrize(
    "location",
    ["{}", "models--heavyball--{}/snapshots/3f237b406975d73c2e8fb5193c92827d2e0bfda6"],
    ids=["a folder", "the hub's cache"],
)
def test_a_published_module_is_known_by_its_name(tmp_path: Path, name: str, location: str) -> None:
    config = parse_config(read_config(write(tmp_path / location.format(name), published(name))))
    assert config.mrp is not None
    assert (config.mrp.residual, config.mrp.scale, config.mrp.num_layers) == (*kind_of(name), 3)
    assert config.block_size == 16


def test_the_names_of_the_published_scripts(tmp_path: Path) -> None:
    folder = write(tmp_path / "sdar-1.7b-mrp-3lyr-k2", PUBLISHED)
    assert read_config(folder)["mrp_scale"] == 2.0
    (tmp_path / "current").symlink_to(folder)
    assert read_config(tmp_path / "current")["mrp_scale"] == 2.0


@pytest.mark.parametrize(
    ("location", "changes"),
    [
        ("sdar-4b-mrp-3lyr-k3", {}),
        ("my-sdar-4b-mrp-3lyr-k2", {}),
        ("sdar-4b-mrp-1lyr", {}),
        ("models--other--sdar", {}),
        ("models--someone--sdar-4b-mrp-3lyr-k2/snapshots/0123", {}),  # another owner
        ("sdar-4b-mrp-3lyr", {"num_nextn_predict_layers": 0}),  # without MRP
    ],
)
def test_others_are_not_known(tmp_path: Path, location: str, changes: dict[str, Any]) -> None:
    raw = read_config(write(tmp_path / location, published("sdar-4b-mrp-3lyr") | changes))
    assert raw["block_size"] == 4
    assert "mrp_scale" not in raw


def test_a_config_that_names_the_kind_wins_over_the_name(tmp_path: Path) -> None:
    folder = write(tmp_path / "sdar-4b-mrp-3lyr-k2", published("sdar-4b-mrp-3lyr-k2") | {"mrp_scale": 1.0})
    config = parse_config(read_config(folder))
    assert config.mrp is not None
    assert (config.mrp.scale, config.block_size) == (1.0, 4)


@pytest.mark.parametrize("name", NAMES[:3])
def test_an_option_wins_over_the_name(tmp_path: Path, name: str) -> None:
    raw = read_config(write(tmp_path / name, published(name)))
    config = config_of(raw, LoadOptions(block_size=8, mrp_residual=not kind_of(name)[0], mrp_scale=0.5))
    assert config.mrp is not None
    assert (config.block_size, config.mrp.residual, config.mrp.scale) == (8, not kind_of(name)[0], 0.5)


@pytest.mark.parametrize("name", NAMES[:3])
def test_check_says_the_kind_and_its_source(tmp_path: Path, name: str, run_program, capsys) -> None:
    """Under a published name a small checkpoint with the same keys is loaded whole."""
    made = tiny_checkpoint(dtype=torch.float32)
    raw = {key: value for key, value in made.raw.items() if not key.startswith("mrp_")}
    save_checkpoint(tmp_path / name, raw, made.backbone, made.mrp)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        copy(GOLDEN / GOLDEN_NAMES[0] / file, tmp_path / name)
    assert run_program("check", tmp_path / name, "--device", "cpu") == 0
    output = " ".join(capsys.readouterr().out.split())
    residual, scale = kind_of(name)
    source = f"by the name {name} (docs/modules.md)"
    assert f"MRP's kind {'residual' if residual else 'direct (no residual)'}, {source}" in output
    assert f"MRP's scale {scale:g}, {source}" in output
    assert f"block size 16, {source}; config.json says 4" in output
    assert run_program("check", tmp_path / name, "--device", "cpu", "--mrp-scale", "0.5", "--block-size", "4") == 0
    output = " ".join(capsys.readouterr().out.split())
    assert "MRP's scale 0.5, by --mrp-scale" in output
    assert "block size 4, by --block-size" in output


def test_the_document_has_all_nine() -> None:
    rows = re.findall(
        r"^\| `heavyball/(\S+)` \| (\w+) \| (\S+) \| (\d+) \|", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE
    )
    kinds = {name: (kind == "residual", float(scale), int(block)) for name, kind, scale, block in rows}
    assert kinds == {name: (*kind_of(name), 16) for name in NAMES}


class TestKeys:
    def test_an_unknown_key_is_refused_by_name(self) -> None:
        keys = "mrp_residual, mrp_scale, mrp_default_steps"
        with pytest.raises(CheckpointError, match=f"config.json: mrp_depth is not known, known are {keys}"):
            parse_config(tiny_config(mrp_depth=3))

    @pytest.mark.parametrize(
        ("key", "value", "reason"),
        [
            ("mrp_input_layer_offset", -4, "the output of an earlier layer as the module's input is not supported"),
            ("mrp_drop_residual", True, "a module without a residual has `mrp_residual: false`"),
        ],
    )
    def test_a_module_that_the_published_code_cannot_make_is_refused(
        self, key: str, value: object, reason: str
    ) -> None:
        with pytest.raises(CheckpointError, match=f"config.json: {key} is {value!r}: {reason}"):
            parse_config(tiny_config(**{key: value}))

    def test_values_that_change_nothing_are_accepted(self) -> None:
        assert parse_config(tiny_config(mrp_drop_residual=False)).mrp == parse_config(tiny_config()).mrp

    def test_keys_are_not_refused_without_a_module(self) -> None:
        assert parse_config(tiny_config(num_nextn_predict_layers=0, num_mrp_heads=0, mrp_depth=3)).mrp is None


class TestRevisions:
    COMMIT = "3f237b406975d73c2e8fb5193c92827d2e0bfda6"

    def test_a_folder_of_the_hubs_cache_names_its_commit(self, tmp_path: Path) -> None:
        folder = tmp_path / "models--heavyball--sdar-8b-mrp-3lyr" / "snapshots" / self.COMMIT
        assert revision_of(folder) == self.COMMIT
        assert display_name(folder) == f"heavyball/sdar-8b-mrp-3lyr@{self.COMMIT}"
        for name in ("heavyball/sdar-8b-mrp-3lyr", "heavyball/sdar-8b-mrp-3lyr@main"):
            assert pinned(name, folder) == f"heavyball/sdar-8b-mrp-3lyr@{self.COMMIT}"

    def test_another_folder_has_no_revision(self, tmp_path: Path) -> None:
        assert revision_of(tmp_path) is None
        assert display_name(tmp_path) == tmp_path.name
        assert pinned("some/folder", tmp_path) == "some/folder"
