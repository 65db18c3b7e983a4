"""Trains Learn2PD's filters on the demo's training problems: `python -m dev.lab.rules.learn2pd_train --problems 400`.

As published (`llada/generate_training_data.py` and `train.ipynb` of ims-kdks/Learning-to-Parallel-Decoding): the block
that `static` decodes is the truth. Then the block is decoded again from its masks, and every token that is already the
true one is revealed at once ("extremely greedy parallel"). Each reading on that way is an example. Where no token is
newly true, the block is given up. Places behind the answer's end count for nothing.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from dev.lab.rules.compare import requests_of
from dev.lab.rules.harness import tasks_of
from dev.lab.rules.learn2pd import FEATURES, WEIGHTS, Vector, features_of
from service.decode.block import MASKED, Block
from service.decode.canvas import Canvas
from service.decode.mode import DecodingMode
from service.decode.policy import Decoding, Evaluate, Prediction
from service.decode.rules import LowestEntropy, Rule, TopConfidence
from service.demo import CHECKPOINT, Problem
from service.engine import Engine, EngineConfig
from service.model import load_checkpoint
from training.demo.tasks import draw

_HIDDEN, _RATE, _EPOCHS, _ROWS = 64, 3e-3, 60, 512

#: features by kind; of each position 1: true, 0: not, -1: not judged
Example = tuple[dict[str, Vector], list[int]]


class Greedy(DecodingMode, frozen=True):
    """Decodes as `static`, then again extremely greedily; keeps what it saw in `examples`."""

    mode: ClassVar[str] = "learn2pd-data"
    examples: ClassVar[list[Example]] = []

    @property
    def rule(self) -> Rule:
        """It asks for entropies."""
        return LowestEntropy(0.0)

    def decode(self, canvas: Canvas) -> Decoding:
        """Both decodes are made beside the canvas, which gets the block at the end."""
        start, true, one = canvas.block, canvas.block, TopConfidence(1)
        while not canvas.ends(true):
            *_, reading = yield Evaluate((start, true))
            true = true.reveal(one(reading))
        state = start
        while not state.complete:
            *_, reading = yield Evaluate((start, state))
            self.examples.append(_example(reading, true))
            right = [pick for pick in reading.picks if true.tokens[pick.position] == pick.token]
            if not right:
                break
            state = state.reveal(right)
        while not canvas.block.complete:
            (reading,) = yield Evaluate((canvas.block,))
            canvas.reveal("denoise", one(reading))


def _example(reading: Prediction, true: Block) -> Example:
    labels = [-1] * len(true.tokens)
    for pick in reading.picks:
        if (token := true.tokens[pick.position]) != MASKED:
            labels[pick.position] = int(pick.token == token)
    return {kind: features_of(reading, kind) for kind in FEATURES}, labels


def collect(engine: Engine, problems: Sequence[Problem], together: int = 16) -> list[Example]:
    """The examples of some problems."""
    tasks, stops = tasks_of(problems), frozenset(engine.model.eos_token_ids)
    for start in range(0, len(tasks), together):
        engine.generate(requests_of(Greedy(), tasks[start : start + together], stops))
    return Greedy.examples


def train(inputs: Tensor, labels: Tensor, seed: int = 0) -> nn.Sequential:
    """inputs `[N, F]`, labels `[N, 16]` (-1: not judged) -> the filter."""
    torch.manual_seed(seed)
    layers = nn.Sequential(nn.Linear(inputs.shape[1], _HIDDEN), nn.ReLU(), nn.Linear(_HIDDEN, labels.shape[1]))
    optimiser = torch.optim.AdamW(layers.parameters(), lr=_RATE)
    for _ in range(_EPOCHS):
        for rows in torch.randperm(len(inputs)).split(_ROWS):
            optimiser.zero_grad()
            _loss(layers, inputs[rows], labels[rows]).backward()
            optimiser.step()
    return layers


def _loss(layers: nn.Sequential, inputs: Tensor, labels: Tensor) -> Tensor:
    judged = labels >= 0
    loss: Tensor = nn.functional.binary_cross_entropy_with_logits(layers(inputs)[judged], labels[judged].float())
    return loss


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--problems", type=int, default=400)
    given = parser.parse_args()
    torch.set_num_threads(1)
    rng, prompts = random.Random(11), dict[str, None]()  # noqa: S311 - a draw of problems
    while len(prompts) < given.problems:
        prompts[draw(rng).prompt] = None
    engine = Engine(load_checkpoint(CHECKPOINT), EngineConfig(prefix_cache=False, max_rows=2048))
    examples = collect(engine, [Problem(prompt) for prompt in prompts])
    labels = torch.tensor([label for _, label in examples])
    held, kept = len(examples) // 10, dict[str, list[object]]()
    for kind in FEATURES:
        inputs = torch.from_numpy(np.stack([features[kind] for features, _ in examples]))
        layers = train(inputs[held:], labels[held:])
        print(kind, len(examples), "examples, held-out loss", _loss(layers, inputs[:held], labels[:held]).item())  # noqa: T201
        first, _, second = layers
        parts = (first.weight.T, first.bias, second.weight.T, second.bias)
        kept[kind] = [np.round(part.detach().double().numpy(), 4).tolist() for part in parts]
    WEIGHTS.write_text(json.dumps(kept, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
