"""The picture is drawn for light and dark pages, and is the same for the same file."""

from __future__ import annotations

from pathlib import Path

from service.quality.picture import draw_frontier
from tests.quality.made_up import made_up_file


def test_four_files_that_name_presets_and_modes(tmp_path: Path) -> None:
    paths = draw_frontier(made_up_file(), tmp_path)
    assert {path.name for path in paths} == {
        "frontier.png", "frontier.svg", "frontier-dark.png", "frontier-dark.svg"
    }  # fmt: skip
    assert all(path.stat().st_size > 5000 for path in paths)
    light, dark = ((tmp_path / name).read_text("utf-8") for name in ("frontier.svg", "frontier-dark.svg"))
    for name in ("lossless", "balanced", "fast"):
        assert light.count(f'id="preset {name}"') == 2
    for text in ("static", "remask", "tokens per forward"):
        assert f"<!-- {text} -->" in light
    assert "#0d1117" in dark
    assert "#0d1117" not in light


def test_again_the_same(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    for one, other in zip(draw_frontier(made_up_file(), first), draw_frontier(made_up_file(), second), strict=True):
        assert one.read_bytes() == other.read_bytes()
