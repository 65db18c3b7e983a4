"""The picture of a reinforcement learning: accuracy by updates, and the time of each part of an update.

Knows the numbers of `python -m training.rl` alone; needs matplotlib.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.style import series
from dev.pictures.frontier import PAGES, page_style

STEM = "rl"
#: updates whose mean reward is shown
_WINDOW = 10
#: parts of an update, with their names in the picture
_PARTS = {"rollout_s": "rollouts", "train_s": "training", "publish_s": "saving", "load_s": "loading"}


def draw_learning(runs: Mapping[str, Path], folder: Path) -> list[Path]:
    """Writes the pictures. `runs`: the curve.jsonl of each run by its label."""
    curves = {
        label: [json.loads(line) for line in file.read_text("utf-8").splitlines()] for label, file in runs.items()
    }
    paths = []
    for page in PAGES:
        with mpl.rc_context(page_style(page)):
            figure = learning_figure(curves)
            paths.append(folder / f"{STEM}{page.suffix}.png")
            figure.savefig(paths[-1], dpi=130)
    return paths


def learning_figure(curves: Mapping[str, Sequence[Mapping[str, Any]]]) -> Figure:
    """The figure of some runs, each a list of the lines of its file."""
    figure = Figure(figsize=(10, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    for index, (label, lines) in enumerate(curves.items()):
        _curve(left, label, lines, index, last=index == len(curves) - 1)
    left.set(title="Accuracy on held-out problems", xlabel="updates (thin: mean reward of the last ten)")
    left.legend(loc="lower right")
    _times(right, curves)
    return figure


def _curve(axes: Axes, label: str, lines: Sequence[Mapping[str, Any]], index: int, *, last: bool) -> None:
    """One run. Runs with equal numbers stay visible, since a later one has smaller marks."""
    judged = [(line["update"], line["accuracy"]) for line in lines if "accuracy" in line]
    look: dict[str, Any] = {**series(index)}
    axes.plot(*zip(*judged, strict=True), **look, label=label, markersize=10 if not last else 5)
    rewards = [line["reward"] for line in lines if "reward" in line]
    means = [fmean(rewards[max(0, end - _WINDOW) : end]) for end in range(1, len(rewards) + 1)]
    axes.plot(range(len(means)), means, color=look["color"], alpha=0.35, linewidth=1)


def _times(axes: Axes, curves: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    start = [0.0] * len(curves)
    for index, (name, part) in enumerate(_PARTS.items()):
        seconds = [median(line[name] for line in lines if name in line) for lines in curves.values()]
        axes.barh(list(curves), seconds, left=start, color=series(index)["color"], label=part, height=0.5)
        start = [before + more for before, more in zip(start, seconds, strict=True)]
    axes.set(title="Seconds of an update, median")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=4)
