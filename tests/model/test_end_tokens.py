"""Where a checkpoint says how answers end: config.json, and generation_config.json for chat checkpoints."""

import json
import shutil
from pathlib import Path

import pytest

from service.errors import CheckpointError
from service.model import load_checkpoint

GOLDEN = Path(__file__).parents[1] / "golden" / "sdar-mrp-random-a"


@pytest.fixture
def folder(tmp_path):
    return Path(shutil.copytree(GOLDEN, tmp_path / "checkpoint"))


@pytest.mark.parametrize(
    ("more", "expected"),
    [({"eos_token_id": 7}, (510, 7)), ({"eos_token_id": [9, 510]}, (510, 9)), ({"temperature": 1.0}, (510,))],
)
def test_the_end_tokens_of_both_files_are_joined(folder, more, expected):
    (folder / "generation_config.json").write_text(json.dumps(more))
    assert load_checkpoint(folder).config.eos_token_ids == expected


def test_without_a_generation_config(folder):
    assert load_checkpoint(folder).config.eos_token_ids == (510,)


def test_a_broken_generation_config_is_named(folder):
    (folder / "generation_config.json").write_text("[1")
    with pytest.raises(CheckpointError, match=r"generation_config\.json cannot be read"):
        load_checkpoint(folder)
