"""The calibration file: written and read again, and what is said of one that is broken."""

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
        assert Plan.of(params).params == params
    assert Plan.of(Speculative(4)).name == "speculative mrp_steps=4"


def test_the_frontier_is_in_order_of_speed(path: Path) -> None:
    rates = [row.speed_at(16).tokens_per_second for row in read_quality(path).frontier]
    assert rates == sorted(rates)
    assert len(rates) == 5


def broken(change: Callable[[dict[str, Any]], Any]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    def changed(content: dict[str, Any]) -> dict[str, Any]:
        change(content)
        return content

    return changed


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (broken(lambda file: file.update(version=2)), "version: Input should be 1"),
        (broken(lambda file: file.pop("presets")), "presets: Field required"),
        (broken(lambda file: file["presets"].pop("fast")), "presets lack fast"),
        (broken(lambda file: file["presets"].update(best={"mode": "static"})), "presets.best"),
        (broken(lambda file: file["presets"]["fast"].update(mode="swift")), "preset 'fast': mode is 'swift'"),
        (broken(lambda file: file["presets"]["fast"]["knobs"].update(speed=1)), "does not use speed"),
        (broken(lambda file: file["presets"]["fast"]["knobs"].update(threshold=2)), "threshold is 2"),
        (broken(lambda file: file["rows"][0].update(accuracy=1.5)), "rows.0.accuracy"),
        (broken(lambda file: file["rows"][0]["speed"].pop()), "lacks some of the concurrencies [1, 16]"),
        (broken(lambda file: file["measured"].update(chosen_at=4)), "chosen_at is 4, measured were [1, 16]"),
        (broken(lambda file: file.update(more=1)), "more: Extra inputs are not permitted"),
        (lambda file: [file], "the file: Input should be an object"),
    ],
)
def test_what_is_wrong_is_named(path: Path, change: Callable[[Any], Any], said: str) -> None:
    path.write_text(json.dumps(change(json.loads(path.read_text("utf-8")))), "utf-8")
    with pytest.raises(CheckpointError, match="is no calibration file of version 1") as caught:
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
