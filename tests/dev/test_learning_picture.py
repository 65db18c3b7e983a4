"""The picture of a reinforcement learning shows every run, also where two runs have the same numbers."""

from dev.pictures.learning import learning_figure

LINES = [
    {"update": 0, "accuracy": 0.5, "reward": 0.4, "rollout_s": 2.0, "train_s": 3.0, "publish_s": 0.1, "load_s": 0.1},
    {"update": 1, "reward": 0.6, "rollout_s": 4.0, "train_s": 3.0, "publish_s": 0.1, "load_s": 0.1},
    {"update": 2, "accuracy": 0.7},
]


def test_curves_and_times_of_every_run():
    left, right = learning_figure({"static": LINES, "speculative": LINES}).axes
    judged = [line for line in left.lines if line.get_marker() != "None"]
    assert [list(line.get_ydata()) for line in judged] == [[0.5, 0.7]] * 2
    assert judged[0].get_markersize() > judged[1].get_markersize(), "both can be seen"
    assert [text.get_text() for text in left.get_legend().get_texts()] == ["static", "speculative"]
    rollouts = [bar.get_width() for bar in right.containers[0]]
    assert rollouts == [3.0, 3.0]
