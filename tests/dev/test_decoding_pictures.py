"""The pictures of decoding are drawn from real answers of the demo, as README and docs/modes.md show them."""

from pathlib import Path

from PIL import Image

from dev.pictures.decoding import draw_decoding
from service.decode.modes import MODES

DOCS = Path(__file__).parents[2] / "docs"


def facts(picture):
    with Image.open(picture) as image:
        return image.size, getattr(image, "n_frames", 1)


def test_the_pictures_in_the_repository_are_those_that_are_drawn(tmp_path):
    drawn = {str(path.relative_to(tmp_path)): facts(path) for path in draw_decoding(tmp_path)}
    assert drawn.keys() == {"decoding.gif", *(f"modes/{mode}.png" for mode in MODES)}
    assert {name: facts(DOCS / name) for name in drawn} == drawn, "`make pictures`"
    assert all((DOCS / name).stat().st_size <= 400_000 for name in drawn)
