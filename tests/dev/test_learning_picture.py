"""The picture of a reinforcement learning shows every run, also where two runs have the same numbers."""

import json

from matplotlib.image import imread

from dev.pictures.learning import draw_learning

LINES = [
    {"update": 0, "accuracy": 0.5, "reward": 0.4, "rollout_s": 2.0, "train_s": 3.0, "publish_s": 0.1, "load_s": 0.1},
    {"update": 1, "reward": 0.6, "rollout_s": 4.0, "train_s": 3.0, "publish_s": 0.1, "load_s": 0.1},
    {"update": 2, "accuracy": 0.7},
]


def test_pictures_for_light_and_dark_pages(tmp_path):
    file = tmp_path / "curve.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in LINES))
    light, dark = draw_learning({"static": file, "speculative": file}, tmp_path)
    assert imread(light)[0, 0, 0] > 0.9 > 0.2 > imread(dark)[0, 0, 0]
