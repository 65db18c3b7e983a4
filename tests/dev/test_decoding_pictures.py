"""The pictures of decoding are drawn from real answers of the demo, as README and docs/modes.md show them."""

from pathlib import Path

import pytest
from PIL import Image

from dev.pictures.decoding import draw_decoding
from service.decode.modes import MODES

DOCS = Path(__file__).parents[2] / "docs"
MODE_PICTURES = [f"modes/{mode}.png" for mode in MODES]


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    folder = tmp_path_factory.mktemp("drawn")
    written = list(draw_decoding(folder))
    assert all(path.is_file() for path in written)
    return folder


@pytest.mark.parametrize("name", ["decoding.gif", *MODE_PICTURES])
def test_the_pictures_in_the_repository_are_those_that_are_drawn(drawn, name):
    assert (DOCS / name).stat().st_size <= 400_000
    with Image.open(DOCS / name) as ours, Image.open(drawn / name) as made:
        assert (ours.size, getattr(ours, "n_frames", 1)) == (made.size, getattr(made, "n_frames", 1)), "`make pictures`"
