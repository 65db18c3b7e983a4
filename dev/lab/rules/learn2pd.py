"""Learn2PD: a small filter that says which tokens of a reading are already final.

Source: arXiv 2509.25188, section 4, and `llada/generate.py` (`generate_learn2parallel`) of
ims-kdks/Learning-to-Parallel-Decoding: a perceptron of two layers reads the confidences of a block and gives a logit a
position. Positions whose sigmoid is above a threshold are revealed, and the most confident one in any case.
`learn2pd_train.py` trains it as published, on the demo's training problems. `paper` reads the confidences alone;
`more` also entropies and which positions are masked.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dev.lab.rules.method import Method
from service.decode.block import Pick
from service.decode.knobs import THRESHOLD, Knob
from service.decode.mode import RuleMode
from service.decode.policy import Prediction
from service.decode.rules import LeftToRightAbove

WEIGHTS = Path(__file__).parent / "learn2pd.json"
FEATURES = ("paper", "more")
_BLOCK = 16

Vector = NDArray[np.float32]


def features_of(reading: Prediction, kind: str) -> Vector:
    """`[16]` for `paper`, `[48]` for `more`. Revealed positions have confidence 1 and entropy 0."""
    confidence, entropy, masked = np.ones(_BLOCK), np.zeros(_BLOCK), np.zeros(_BLOCK)
    places = list(reading.positions)
    confidence[places], masked[places] = reading.confidences, 1.0
    if reading.entropies:
        entropy[places] = reading.entropies
    parts = (confidence,) if kind == "paper" else (confidence, entropy, masked)
    return np.concatenate(parts).astype(np.float32)


@cache
def filters() -> Mapping[str, Any]:
    """kind -> the two layers' weights and biases."""
    kept = json.loads(WEIGHTS.read_text(encoding="utf-8"))
    return {kind: [np.array(part, np.float32) for part in parts] for kind, parts in kept.items()}


@dataclass(frozen=True, slots=True)
class Filtered:
    """The picks that the filter finds final, and the most confident one."""

    needs_entropy: ClassVar[bool] = True
    threshold: float
    kind: str

    @property
    def in_order(self) -> LeftToRightAbove:
        """Not defined by the paper; as `dynamic`'s."""
        return LeftToRightAbove(self.threshold)

    def __call__(self, reading: Prediction) -> tuple[Pick, ...]:
        """The picks to reveal after the reading."""
        first, bias, second, last = filters()[self.kind]
        logits = np.maximum(features_of(reading, self.kind) @ first + bias, 0.0) @ second + last
        final = 1 / (1 + np.exp(-logits)) > self.threshold
        (surest,) = reading.most_confident()
        return tuple(pick for pick in reading.picks if final[pick.position] or pick == surest)


class Learn2pd(RuleMode, frozen=True):
    """Reveals what the filter finds final with a probability above `threshold`."""

    mode: ClassVar[str] = "learn2pd"
    threshold: Annotated[float, THRESHOLD] = 0.9
    kind: Annotated[str, Knob(str, "the filter's features", choices=FEATURES)] = "paper"

    @property
    def rule(self) -> Filtered:  # type: ignore[override]  # a rule of the lab is none of `Rule`
        """The filter."""
        return Filtered(self.threshold, self.kind)


METHOD = Method(
    "learn2pd",
    "arXiv 2509.25188",
    "a perceptron of two layers, trained on 400 training problems",
    (*(Learn2pd(value) for value in (0.7, 0.9, 0.95)), *(Learn2pd(value, "more") for value in (0.7, 0.9, 0.95))),
)
