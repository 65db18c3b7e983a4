"""The calibration file: written and read again, and the errors of broken files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from service.decode.modes import Remask, Speculative, Static
from service.errors import CheckpointError
from service.quality.schema import Plan, read_quality, write_quality
from tests.quality.made_up import made_up_file


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_quality(made_up_file(), tmp_path / "quality.json")
    return tmp_path / "quality.json"


def test_what_is_written_is_read(path: Path) -> None:
    assert read_quality(path) == made_up_file()
    assert [one.name for one in path.parent.iterdir()] == ["quality.json"]


def test_plans_are_params_and_back() -> None:
    for params in (Static(), Speculative(4), Speculative(0, max_drafts=4, threshold=0.5), Remask(0.25)):
        assert Plan.from_mode(params).decoding_mode == params
    assert Plan.from_mode(Speculative(4)).name == "speculative mrp_steps=4"


def test_the_frontier_is_in_order_of_speed(path: Path) -> None:
    rates = [row.speed_at(16).tokens_per_second for row in read_quality(path).frontier]
    assert rates == sorted(rates)
    assert len(rates) == 5


def of_version_1(file: dict[str, Any]) -> dict[str, Any]:
    """The file as calibrations wrote it before presets had bands."""
    for row in file["rows"]:
        marks = [speed.pop("on_frontier") for speed in row["speed"]]
        row["on_frontier"] = marks[-1]
    presets = {name: {"mode": band["mode"], "knobs": band["knobs"]} for name, [band] in file["presets"].items()}
    return file | {"version": 1, "presets": presets, "measured": file["measured"] | {"chosen_at": 16}}


def test_a_file_of_version_1_has_one_band_a_preset(path: Path) -> None:
    old = of_version_1(json.loads(path.read_text("utf-8")))
    path.write_text(json.dumps(old), "utf-8")
    file, made_now = read_quality(path), made_up_file()
    assert file.presets == made_now.presets
    assert {name: bands[0].up_to for name, bands in file.presets.items()} == dict.fromkeys(file.presets)
    assert [row.speed_at(16) for row in file.rows] == [row.speed_at(16) for row in made_now.rows]
    assert not any(row.speed_at(1).on_frontier for row in file.rows)
    write_quality(file, path)
    assert read_quality(path) == file


def test_a_file_of_version_2_is_of_temperature_0(path: Path) -> None:
    old = json.loads(path.read_text("utf-8"))
    del old["measured"]["temperatures"], old["sampled_presets"]
    for row in old["rows"]:
        del row["sampled"]
    path.write_text(json.dumps(old | {"version": 2}), "utf-8")
    file = read_quality(path)
    assert file == made_up_file()
    assert (file.measured.temperatures, {*map(str, file.sampled_presets.values())}) == (
        [0.0],
        {str(file.presets["lossless"])},
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda file: file.pop("presets"), "presets: Field required"),
        (lambda file: file.pop("measured"), "measured: Field required"),
        (lambda file: file["presets"]["fast"].update(mode="swift"), "preset 'fast': mode is 'swift'"),
        (lambda file: file["presets"].update(fast=3), "presets.fast"),
        (lambda file: file.update(rows=3), "rows"),
    ],
)
def test_what_is_wrong_with_one_of_version_1_is_named(path: Path, change: Callable[[Any], Any], said: str) -> None:
    old = of_version_1(json.loads(path.read_text("utf-8")))
    change(old)
    path.write_text(json.dumps(old), "utf-8")
    with pytest.raises(CheckpointError) as caught:
        read_quality(path)
    assert said in caught.value.message


def banded(file: dict[str, Any], *ends: float | None) -> None:
    [band] = file["presets"]["fast"]
    file["presets"]["fast"] = [band | {"up_to": end} for end in ends]


def broken(change: Callable[[dict[str, Any]], Any]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    def changed(content: dict[str, Any]) -> dict[str, Any]:
        change(content)
        return content

    return changed


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (broken(lambda file: file.update(version=4)), "version: Input should be 3"),
        (broken(lambda file: file.pop("presets")), "presets: Field required"),
        (broken(lambda file: file["presets"].pop("fast")), "presets lack fast"),
        (broken(lambda file: file["presets"].update(best=[{"mode": "static"}])), "presets.best"),
        (broken(lambda file: file["presets"]["fast"][0].update(mode="swift")), "preset 'fast': mode is 'swift'"),
        (broken(lambda file: file["presets"]["fast"][0]["knobs"].update(speed=1)), "does not use speed"),
        (broken(lambda file: file["presets"]["fast"][0]["knobs"].update(threshold=2)), "threshold is 2"),
        (broken(lambda file: file["presets"]["fast"].clear()), "preset 'fast': up_to are [], the last must be null"),
        (broken(lambda file: file["presets"]["fast"][0].update(up_to=4)), "up_to are [4.0], the last must be null"),
        (broken(lambda file: banded(file, 0, None)), "presets.fast.0.up_to: Input should be greater than 0"),
        (broken(lambda file: banded(file, None, None)), "up_to are [None, None], the last must be null, and no other"),
        (broken(lambda file: banded(file, 4, 2, None)), "up_to are [4.0, 2.0, None], they must ascend"),
        (broken(lambda file: file["rows"][0].update(accuracy=1.5)), "rows.0.accuracy"),
        (broken(lambda file: file["rows"][0]["speed"].pop()), "lacks some of the concurrencies [1, 16]"),
        (broken(lambda file: file["measured"].update(chosen_at=4)), "measured.chosen_at: Extra inputs"),
        (broken(lambda file: file.update(more=1)), "more: Extra inputs are not permitted"),
        (lambda file: [file], "the file: Input should be an object"),
    ],
)
def test_what_is_wrong_is_named(path: Path, change: Callable[[Any], Any], said: str) -> None:
    path.write_text(json.dumps(change(json.loads(path.read_text("utf-8")))), "utf-8")
    with pytest.raises(CheckpointError, match="is no calibration file of version 1 to 3") as caught:
        read_quality(path)
    assert said in caught.value.message
    assert str(path) in caught.value.message


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xff", b'{"version": 1'])
def test_what_is_no_json(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="Invalid JSON"):
        read_quality(path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot be read: No such file"):
        read_quality(tmp_path / "quality.json")
