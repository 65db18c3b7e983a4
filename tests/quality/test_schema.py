"""The calibration file: written and read again, and the errors of broken files."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from service.decode.modes import Remask, Speculative, Static
from service.errors import CheckpointError
from service.quality.schema import Plan, read_quality, write_quality
from tests.quality.made_up import made_up_file

FIRST = "the first plan is 'speculative mrp_steps=auto'"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_quality(made_up_file(), tmp_path / "quality.json")
    return tmp_path / "quality.json"


def test_a_written_file_is_read_again(path: Path) -> None:
    assert read_quality(path) == made_up_file()
    assert [entry.name for entry in path.parent.iterdir()] == ["quality.json"]


def test_plans_are_modes_and_back() -> None:
    for mode in (Static(), Speculative(4), Speculative(0, max_drafts=4, threshold=0.5), Remask(0.25)):
        assert Plan.from_mode(mode).decoding_mode == mode
    assert Plan.from_mode(Speculative(4)).name == "speculative mrp_steps=4"


def broken(change: Callable[[dict[str, Any]], Any]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    def changed(content: dict[str, Any]) -> dict[str, Any]:
        change(content)
        return content

    return changed


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            broken(lambda file: file.update(version=3)),
            "version: Input should be 4; run `mrp-serve calibrate` again",
        ),
        (broken(lambda file: file.pop("presets")), "presets: Field required"),
        (broken(lambda file: file["presets"].pop("fast")), "presets lack fast"),
        (broken(lambda file: file["presets"]["fast"][1].update(mode="swift")), "preset 'fast': mode is 'swift'"),
        (broken(lambda file: file["presets"]["fast"][1]["knobs"].update(speed=1)), "does not use speed"),
        (broken(lambda file: file["presets"]["fast"].clear()), f"preset 'fast': {FIRST}"),
        (broken(lambda file: file["sampled_presets"]["balanced"].pop(0)), f"preset 'balanced': {FIRST}"),
        (
            broken(lambda file: file["presets"].update(lossless=file["presets"]["fast"])),
            f"preset 'lossless': {FIRST}, and has no other plan",
        ),
        (
            broken(lambda file: file["presets"]["fast"][1].pop("tokens_per_forward")),
            "tokens_per_forward: Field required",
        ),
        (broken(lambda file: file["rows"][0].update(accuracy=1.5)), "rows.0.accuracy"),
        (broken(lambda file: file.update(more=1)), "more: Extra inputs are not permitted"),
        (lambda file: [file], "the file: Input should be an object"),
    ],
)
def test_the_first_fault_is_named(path: Path, change: Callable[[Any], Any], message: str) -> None:
    path.write_text(json.dumps(change(json.loads(path.read_text("utf-8")))), "utf-8")
    with pytest.raises(CheckpointError, match="is no calibration file of version 4") as caught:
        read_quality(path)
    assert message in caught.value.message
    assert str(path) in caught.value.message


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot be read: No such file"):
        read_quality(tmp_path / "quality.json")
