"""Trains an SDAR backbone on block-wise masked answers, with states from which it goes on to the bit.

Each example gives two noisy copies with complementary masks, so every answer token is a target once. The tail after
the end token is always masked, and its target is the uniform distribution. A decoder that reveals the most confident
position first then spends no forward on the tail before the answer is complete.
"""

import hashlib
import math
import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from service.model import Backbone, ModelConfig
from training.attention import BlockAttention, DenseAttention
from training.batch import Batch
from training.demo.batches import Batches
from training.optim import Optimiser, Schedule
from training.state import RunFolder
from training.trainer import fast_in_bfloat16

RATE, TAIL_WEIGHT = 4e-3, 0.2
_LEAST_NOISE = 0.15
_LOG_EVERY, _SAVE_SECONDS, _JUDGE_SECONDS = 100, 240, 1500


def new_backbone(config: ModelConfig) -> Backbone:
    """A backbone with fresh weights.

    Embeddings start large and every layer's output starts at zero, so random layers do not hide a token's identity.
    With this, the model learns to copy from the prompt in 500 steps; without it, 3,500 steps were not enough.
    """
    backbone = Backbone(config)
    for name, parameter in backbone.named_parameters():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            nn.init.zeros_(parameter)
        elif name.startswith(("embed_tokens", "lm_head")):
            nn.init.normal_(parameter, std=1.0 if name.startswith("embed") else 0.02)
        elif parameter.dim() == 2:
            nn.init.normal_(parameter, std=0.6 / math.sqrt(parameter.shape[1]))
    return backbone


def complementary_masks(batch: Batch) -> tuple[Tensor, Tensor]:
    """Two complementary masks of the answer, and each position's noise rate, both `[2, B, N]`."""
    rows, layout = len(batch.tokens), batch.layout
    rate = torch.rand(rows, layout.blocks).repeat_interleave(layout.block, 1)
    first = torch.rand(rows, layout.noisy) < rate
    return torch.stack([first & batch.answer, ~first & batch.answer]), torch.stack([rate, 1 - rate])


def backbone_loss(backbone: Backbone, batch: Batch) -> Tensor:
    """Cross-entropy at masked positions, weighted by 1 / noise rate, plus the tail's uniform target."""
    layout = batch.layout
    where, rate = complementary_masks(batch)
    clean = DenseAttention(layout.clean_mask)
    backbone(batch.clean, layout.clean_positions, clean)
    tokens = torch.cat([batch.masked(where[0]), batch.masked(where[1])], 1)
    attend = BlockAttention(layout.reads(2), layout.block, clean.layers)
    noisy = backbone(tokens, layout.positions(2), attend).unflatten(1, (2, layout.noisy)).transpose(0, 1)
    targets = batch.truth.expand(2, -1, -1)[where]
    each = F.cross_entropy(backbone.logits(noisy[where]).float(), targets, reduction="none")
    weight = 1 / rate[where].clamp(min=_LEAST_NOISE)
    loss = (each * weight).sum() / weight.sum()
    unsure = -backbone.logits(noisy[0][batch.tail]).float().log_softmax(-1).mean(-1)
    return loss + TAIL_WEIGHT * unsure.sum() / weight.sum()


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a training. `first`: updates before it. `steps`: its own updates.

    `falling`: the learning rate falls in the second half, else it is constant. `made`: the updates of it that the
    backbone has already, without a state of the optimiser.
    """

    first: int
    steps: int
    falling: bool
    made: int = 0


@dataclass(frozen=True, slots=True)
class Watcher:
    """Callbacks. `save`: takes the backbone and its updates at every state. `judge`: judges it in a line of text."""

    save: Callable[[Backbone, int], None]
    judge: Callable[[Backbone], str]


def train(backbone: Backbone, batches: Batches, part: Part, folder: RunFolder, watcher: Watcher) -> None:
    """Makes the updates of a part that are not made yet."""
    optimiser = Optimiser(backbone.named_parameters(), Schedule(RATE, flat=0.5))
    optimiser.steps = part.made
    if state := folder.load("cpu"):
        backbone.load_state_dict(state["backbone"])
        optimiser.load(state["optimiser"])
    if optimiser.steps >= part.steps:
        return
    progress = _Progress(backbone, optimiser, part.first, folder, watcher)
    for batch in batches.numbered(part.first + optimiser.steps):
        progress.after(update(backbone, optimiser, batch, part))
        if optimiser.steps == part.steps:
            break
    progress.save()


def update(backbone: Backbone, optimiser: Optimiser, batch: Batch, part: Part) -> Tensor:
    """One update. Its random numbers come from its number. Returns the loss."""
    name = f"backbone/{part.first + optimiser.steps}"
    torch.manual_seed(int.from_bytes(hashlib.blake2b(name.encode(), digest_size=7).digest()))
    with torch.autocast("cpu", torch.bfloat16, enabled=fast_in_bfloat16("cpu")):
        loss = backbone_loss(backbone, batch)
    optimiser.step(loss, optimiser.steps / part.steps if part.falling else 0.0)
    return loss.detach()


class _Progress:
    """Saves, logs and judges from time to time. None of it changes the training."""

    def __init__(
        self, backbone: Backbone, optimiser: Optimiser, first: int, folder: RunFolder, watcher: Watcher
    ) -> None:
        self._backbone, self._optimiser, self._folder, self._watcher = backbone, optimiser, folder, watcher
        self._first = first
        self._sum, self._began = torch.zeros(()), time.process_time()
        self._saved = self._judged = time.monotonic()

    def after(self, loss: Tensor) -> None:
        """Comes after every update."""
        self._sum += loss
        steps, now = self._optimiser.steps, time.monotonic()
        if steps % _LOG_EVERY == 0:
            seconds = (time.process_time() - self._began) / _LOG_EVERY
            self._print(f"loss {self._sum.item() / _LOG_EVERY:.4f}  {seconds:.3f} CPU s an update")
            self._sum, self._began = torch.zeros(()), time.process_time()
        if now - self._saved > _SAVE_SECONDS:
            self.save()
            self._saved = now
        if now - self._judged > _JUDGE_SECONDS:
            self._print(self._watcher.judge(deepcopy(self._backbone)))  # a copy is not compiled
            self._judged = now

    def save(self) -> None:
        """Writes a state."""
        self._folder.save({"backbone": self._backbone.state_dict(), "optimiser": self._optimiser.state()})
        self._watcher.save(self._backbone, self._first + self._optimiser.steps)

    def _print(self, text: str) -> None:
        print(f"{len(self._backbone.layers)} layers  step {self._optimiser.steps}  {text}", flush=True)
