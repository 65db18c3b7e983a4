"""One training of MRP: loads the checkpoint, continues from a saved state, writes a servable folder.

One or several workers run the same code, each with its rank in the team.
"""

import contextlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from service.errors import SettingsError
from service.model import Checkpoint, LoadOptions, load_checkpoint, parse_config
from service.model.quantization.schemes import published_scheme
from training.card import write_card
from training.config import Source, TrainingConfig
from training.conversations import Codec, Corpus, Limits, read_corpus
from training.evaluation import Score, evaluate
from training.lessons import Teacher
from training.module import new_mrp
from training.optim import Optimiser, Steps
from training.publish import HELDOUT_FILE, mrp_config, publish, stored_dtype
from training.simulate import Drafting
from training.state import RunFolder
from training.stream import Shape, Stream
from training.trainer import Report, Team, Trainer


@dataclass(frozen=True, slots=True)
class Start:
    """The start of a run. `step`: updates that were done before. `parameters`: number of MRP's parameters."""

    step: int
    corpus: Corpus
    parameters: int


@dataclass(frozen=True, slots=True)
class Watcher:
    """Callbacks of a run: `start` once at the beginning, `update` after every update."""

    start: Callable[[Start], None] = lambda _: None
    update: Callable[[Report], None] = lambda _: None


def train(
    plan: TrainingConfig, codec_of: Callable[[Path], Codec], device: str, team: Team, watcher: Watcher
) -> tuple[Score, Score] | None:
    """Trains, writes the result and evaluates it on held-out examples.

    Returns the scores of MRP and of zero; None without held-out examples, and for all workers but the first.
    """
    if plan.budget.batches % team.size:
        raise SettingsError(f"{plan.budget.batches} batches per update cannot be shared evenly by {team.size} workers")
    default_device = torch.device(device) if device != "cpu" else contextlib.nullcontext()
    with default_device:
        session = Session(plan, codec_of, device, team)
        session.run(watcher)
        return session.finish() if team.rank == 0 else None


class Session:
    """One worker's part of a training."""

    def __init__(self, plan: TrainingConfig, codec_of: Callable[[Path], Codec], device: str, team: Team) -> None:
        _check_out(plan)
        self._plan = plan
        self._team = team
        self._device = device
        dtype = torch.bfloat16 if device.startswith("cuda") else torch.float32
        options = LoadOptions(dtype, device, plan.source.block_size)
        self._checkpoint = load_checkpoint(plan.source.backbone, options)
        self._raw = _config(self._checkpoint, plan)
        self._ends = _end_ids(self._checkpoint)
        self._corpus = _corpus(self._checkpoint, codec_of, plan.source)
        torch.manual_seed(plan.budget.seed)
        self._mrp = new_mrp(parse_config(self._raw), self._checkpoint.backbone).to(device)
        self._optimiser = Optimiser(self._mrp.named_parameters(), plan.schedule, plan.budget.clip, plan.budget.matrices)
        what = {**plan.what_matters(), "source.lines": self._corpus.lines}
        self._folder = RunFolder(plan.keeping.out / "training", what)

    def run(self, watcher: Watcher) -> None:
        """Makes all updates that are not done yet."""
        budget, optimiser = self._plan.budget, self._optimiser
        self._go_on()
        watcher.start(Start(optimiser.steps, self._corpus, sum(p.numel() for p in optimiser.parameters)))
        teacher = Teacher((self._checkpoint.backbone, self._mrp), self._plan.objective, self._ends)
        trainer = Trainer(teacher, optimiser, budget.seed, budget.bf16, self._team)
        progress = Steps(budget.steps, optimiser.steps)

        def after(report: Report) -> None:
            progress.done = report.step
            if self._team.rank == 0:
                self._folder.log(report)
                if report.step % self._plan.keeping.save_every == 0 or report.step == budget.steps:
                    self._keep()
            watcher.update(report)

        stream = Stream(self._corpus.train, self._shape(), budget.seed)
        first = optimiser.steps // teacher.updates(self._checkpoint.config.block_size)
        each = budget.batches // self._team.size
        mine = range(self._team.rank * each, (self._team.rank + 1) * each)
        trainer.run(stream.rounds(first, budget.batches, mine), progress, after)

    def finish(self) -> tuple[Score, Score] | None:
        """Writes the checkpoint and its card, and evaluates exactly what was written."""
        mrp, out = self._mrp.eval().requires_grad_(requires_grad=False), self._plan.keeping.out
        mrp.to(stored_dtype(self._checkpoint.path)).float()
        publish(self._checkpoint.path, out, self._raw, (self._checkpoint.backbone, mrp))
        if not self._corpus.heldout:
            write_card(self._plan, self._corpus, {})
            return None
        stream = Stream(self._corpus.heldout, self._shape(), self._plan.budget.seed)
        count = min(self._plan.keeping.judged, stream.batches_per_epoch)
        torch.manual_seed(self._plan.budget.seed)
        models = (self._checkpoint.backbone, mrp)
        scores = evaluate(models, map(stream.batch, range(count)), self._ends, Drafting(self._plan.drafts))
        report = {name: score.numbers() for name, score in zip(("mrp", "zero"), scores, strict=True)}
        (out / HELDOUT_FILE).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        write_card(self._plan, self._corpus, report)
        return scores

    def _go_on(self) -> None:
        state = self._folder.load(self._device)
        if state:
            self._mrp.load_state_dict(state["mrp"])
            self._optimiser.load(state["optimiser"])
        if self._team.rank == 0:
            self._folder.forget_after(self._optimiser.steps)

    def _keep(self) -> None:
        self._folder.save({"mrp": self._mrp.state_dict(), "optimiser": self._optimiser.state()})

    def _shape(self) -> Shape:
        config, budget = self._checkpoint.config, self._plan.budget
        pad_id = int(config.mask_token_id == 0)
        sub_block = config.sub_block_size
        return Shape(budget.rows, config.block_size, pad_id, config.mask_token_id, budget.tokens, sub_block)


def _check_out(plan: TrainingConfig) -> None:
    """SettingsError if the result would overwrite the backbone."""
    if plan.keeping.out.resolve() == Path(plan.source.backbone).resolve():
        raise SettingsError(f"out is {plan.keeping.out}, which is the backbone's own folder: choose another one")


def _config(checkpoint: Checkpoint, plan: TrainingConfig) -> Mapping[str, Any]:
    """The config.json of the result. SettingsError if this backbone cannot have such a module."""
    config, layers, block = checkpoint.config, plan.module.layers, checkpoint.config.block_size
    if published_scheme(checkpoint.raw) is not None:
        raise SettingsError("the backbone's files have 8-bit matrices, expected are the wide ones they were made of")
    if not 1 <= layers <= config.num_layers:
        raise SettingsError(f"layers is {layers}, allowed are 1 to the backbone's {config.num_layers}")
    if not 1 <= plan.drafts < block:
        raise SettingsError(f"unroll is {plan.drafts}, allowed are 1 to {block - 1}: a block has {block} positions")
    module = {
        "num_nextn_predict_layers": layers,
        "mrp_residual": plan.module.residual,
        "mrp_scale": 1.0,
        "mrp_default_steps": plan.drafts,
    }
    return mrp_config({**checkpoint.raw, "block_size": block}, module)


def _corpus(checkpoint: Checkpoint, codec_of: Callable[[Path], Codec], source: Source) -> Corpus:
    config = checkpoint.config
    limits = Limits(config.block_size, min(source.max_length, config.max_positions), source.window)
    return read_corpus(source.data, codec_of(checkpoint.path), config.eos_token_ids, limits, source.heldout)


def _end_ids(checkpoint: Checkpoint) -> Tensor:
    return torch.tensor(checkpoint.config.eos_token_ids or [-1], device=checkpoint.device)
