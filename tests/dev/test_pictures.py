"""Pictures of a learning and a frontier for light and dark pages, and those of decoding, as the documents show them."""

import json
from pathlib import Path

from matplotlib.image import imread
from PIL import Image

from dev.pictures.decoding import draw_decoding
from dev.pictures.frontier import draw_frontier
from dev.pictures.learning import draw_learning
from service.decode.modes import MODES
from tests.quality.made_up import made_up_file

DOCS = Path(__file__).parents[2] / "docs"
LINES = [
    {"update": 0, "accuracy": 0.5, "reward": 0.4, "rollout_s": 2.0, "train_s": 3.0, "publish_s": 0.1, "load_s": 0.1},
    {"update": 1, "reward": 0.6, "rollout_s": 4.0, "train_s": 3.0, "publish_s": 0.1, "load_s": 0.1},
    {"update": 2, "accuracy": 0.7},
]


def are_light_and_dark(light, dark):
    return imread(light)[0, 0, 0] > 0.9 > 0.2 > imread(dark)[0, 0, 0]


def test_a_learning_shows_every_run_also_where_two_runs_have_the_same_numbers(tmp_path):
    file = tmp_path / "curve.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in LINES))
    assert are_light_and_dark(*draw_learning({"static": file, "speculative": file}, tmp_path))


def test_a_frontier(tmp_path):
    pictures = draw_frontier(made_up_file(), tmp_path)
    assert [picture.name for picture in pictures] == ["frontier.png", "frontier-dark.png"]
    assert are_light_and_dark(*pictures)


def facts(picture):
    with Image.open(picture) as image:
        return image.size, getattr(image, "n_frames", 1)


def test_the_pictures_in_the_repository_are_those_that_are_drawn(tmp_path):
    drawn = {str(path.relative_to(tmp_path)): facts(path) for path in draw_decoding(tmp_path)}
    assert drawn.keys() == {"decoding.gif", *(f"modes/{mode}.png" for mode in MODES)}
    assert {name: facts(DOCS / name) for name in drawn} == drawn, "`make pictures`"
    assert all((DOCS / name).stat().st_size <= 400_000 for name in drawn)
