"""The picture is drawn for light and dark pages, and is the same for the same file."""

from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib.image import imread
from numpy import unique

from service.quality.picture import draw_frontier
from tests.quality.made_up import made_up_file


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("drawn")
    draw_frontier(made_up_file(), folder)
    return folder


def test_four_files_that_name_presets_and_modes(drawn: Path) -> None:
    assert {path.name for path in drawn.iterdir()} == {
        "frontier.png", "frontier.svg", "frontier-dark.png", "frontier-dark.svg"
    }  # fmt: skip
    assert [paper(drawn / name) for name in ("frontier.png", "frontier-dark.png")] == ["#ffffff", "#0d1117"]
    light, dark = ((drawn / name).read_text("utf-8") for name in ("frontier.svg", "frontier-dark.svg"))
    for name in ("lossless", "balanced", "fast"):
        assert light.count(f'id="preset {name}"') == 2
    for text in ("static", "remask", "tokens per forward"):
        assert f"<!-- {text} -->" in light
    assert "#0d1117" in dark
    assert "#0d1117" not in light


def paper(file: Path) -> str:
    """The colour of most of a picture, of which ink covers a part: not the whole, not nothing."""
    pixels = (imread(file)[..., :3] * 255).round().astype(int)
    colours, counts = unique(pixels @ [0x10000, 0x100, 1], return_counts=True)
    assert 0.5 < counts.max() / counts.sum() < 0.98
    assert len(colours) > 50
    return f"#{colours[counts.argmax()]:06x}"


def test_again_the_same(drawn: Path, tmp_path: Path) -> None:
    again = draw_frontier(made_up_file(), tmp_path)
    assert len(again) == 4
    for path in again:
        assert path.read_bytes() == (drawn / path.name).read_bytes()
