"""Trains the demo's MRP module: `python -m training.demo.mrp --backbone DIR --out DIR`.

MRP learns from static decodes of the frozen backbone. In the first phase it is applied once, later twice and more in a
row. Each application reads the state one pick later and passes its anchor on. The later phases have an order loss, so
that drafts come in the backbone's order. A revision loss trains MRP for `remask`: it compares picks that were made in
parallel with the backbone's opinion of each one when the others are in place.

The recipe runs it on its finished backbone; as a command it takes any backbone of the recipe. The same command goes on
from the last state, to the bit on the same machine. `DIR/demo` of `--out` is the servable checkpoint. With
`--published N` the module is trained as published (training/recipes.py), with N windows of 4,096 tokens an update.
"""

import argparse
import json
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from service.model import Backbone, Mrp, load_checkpoint, parse_config
from training.batch import Batch
from training.demo.batches import Batches
from training.demo.checkpoint import export
from training.demo.tasks import draw
from training.demo.text import WINDOW, Windows, library_files
from training.demo.tokenizer import END, control
from training.evaluation import evaluate
from training.lessons import Objective, Phase, Teacher
from training.losses import Weights
from training.module import new_mrp
from training.optim import Optimiser, Steps
from training.publish import mrp_config
from training.recipes import RECIPES
from training.simulate import Drafting
from training.state import RunFolder
from training.trainer import Report, Trainer

LAYERS, STEPS, BATCH, PASSES = 2, 18000, 16, 3
RATE = 3e-3
_NEXT_PICK = 4.0

PHASES = (
    Phase(0.0, 1, Weights(_NEXT_PICK, 0.0, 0.5)),
    Phase(0.35, 2, Weights(_NEXT_PICK, 0.25, 0.5)),
    Phase(0.6, 4, Weights(_NEXT_PICK, 0.5, 0.5)),
)
#: the default steps of `direct`: with four it is right in 69 % of the calibration's prompts, with one in 90 %
_DIRECT_STEPS = 1
_LOG_EVERY, _SAVE_SECONDS, _JUDGED, _DRAFTS = 50, 240, 24, 4


@dataclass(frozen=True, slots=True)
class MrpRun:
    """A training of MRP. `folder`: of the backbone, in half precision.

    `windows`: the windows of an update of the published recipe. None for the demo's own recipe.
    """

    folder: Path
    out: Path
    layers: int = LAYERS
    steps: int = STEPS
    seed: int = 1
    windows: int | None = None

    def run(self) -> None:
        """Makes all updates that are not made yet, and writes the checkpoint."""
        raw, backbone, tokenizer = _load(self.folder)
        raw = mrp_config(raw, {"num_nextn_predict_layers": self.layers, "mrp_default_steps": _DIRECT_STEPS})
        torch.manual_seed(self.seed)
        mrp, end = new_mrp(parse_config(raw), backbone), control(tokenizer, END)
        objective, optimiser = self._recipe(mrp)
        plan = {"layers": self.layers, "steps": self.steps, "seed": self.seed}
        folder = RunFolder(self.out, {**plan, "windows": self.windows} if self.windows else plan)
        if state := folder.load("cpu"):
            mrp.load_state_dict(state["mrp"])
            optimiser.load(state["optimiser"])
        folder.forget_after(optimiser.steps)
        teacher = Teacher((backbone, mrp), objective, end)
        keeper = _Keeper(folder, mrp, optimiser, Steps(self.steps, optimiser.steps))
        rounds = self._rounds(tokenizer, raw, optimiser.steps // teacher.updates(raw["block_size"]))
        Trainer(teacher, optimiser, self.seed).run(rounds, keeper.progress, keeper.after)
        keeper.save()
        mrp = mrp.half().float().eval().requires_grad_(requires_grad=False)
        export(self.out / "demo", raw, (backbone, mrp), tokenizer)
        self._judge((backbone, mrp), tokenizer, raw)

    def _recipe(self, mrp: Mrp) -> tuple[Objective, Optimiser]:
        if self.windows is None:
            return Objective(PHASES, passes=PASSES), Optimiser(mrp.named_parameters(), RATE)
        published = RECIPES["published"]
        schedule = published.schedule(self.steps)
        return published.objective, Optimiser(mrp.named_parameters(), schedule, matrices=published.matrices)

    def _rounds(self, tokenizer: Tokenizer, raw: dict[str, Any], first: int) -> Iterator[list[Batch]]:
        """The batches of each round. A published window has rows of equal length, up to 4,096 tokens of text."""
        windows, per_round = Windows(tokenizer, library_files(heldout=False)), self.windows or 1
        rows = (RECIPES["published"].batch_tokens or 0) // WINDOW if self.windows else BATCH
        batches = Batches(tokenizer, raw["block_size"], rows, self.seed, windows, draw).numbered(first * per_round)
        return map(list, zip(*[batches] * per_round, strict=True))

    def _judge(self, models: tuple[Backbone, Mrp], tokenizer: Tokenizer, raw: dict[str, Any]) -> None:
        """Writes the scores on held-out tasks and on held-out text, of MRP and of stale logits."""
        block, end = raw["block_size"], control(tokenizer, END)
        tasks = Batches(tokenizer, block, BATCH, 2, draw=lambda rng: draw(rng, heldout=True)).numbered(0)
        windows = Windows(tokenizer, library_files(heldout=True))
        mixed = Batches(tokenizer, block, BATCH, 2, windows, lambda rng: draw(rng, heldout=True)).numbered(0)
        texts = (batch for batch in mixed if bool(batch.answer.all()))
        scores = {}
        for name, batches in (("tasks", tasks), ("text", texts)):
            pair = evaluate(models, islice(batches, _JUDGED), end, Drafting(_DRAFTS))
            scores[name] = {who: score.numbers() for who, score in zip(("mrp", "zero"), pair, strict=True)}
        (self.out / "heldout.json").write_text(json.dumps(scores, indent=1) + "\n", encoding="utf-8")


class _Keeper:
    """Saves and logs from time to time. None of it changes the training."""

    def __init__(self, folder: RunFolder, mrp: Mrp, optimiser: Optimiser, progress: Steps) -> None:
        self._folder, self._mrp, self._optimiser, self.progress = folder, mrp, optimiser, progress
        self._saved, self._sums = time.monotonic(), torch.zeros(2)

    def after(self, report: Report) -> None:
        """Comes after every update."""
        self.progress.done = report.step
        self._folder.log(report)
        self._sums += torch.tensor([report.chain, report.revision]) / _LOG_EVERY
        if report.step % _LOG_EVERY == 0:
            chain, revision = self._sums.tolist()
            spent = time.process_time()
            print(f"mrp  step {report.step}  {chain:.4f}  revision {revision:.4f}  CPU {spent:.0f} s", flush=True)
            self._sums = torch.zeros(2)
        if time.monotonic() - self._saved > _SAVE_SECONDS:
            self.save()
            self._saved = time.monotonic()

    def save(self) -> None:
        """Writes a state."""
        self._folder.save({"mrp": self._mrp.state_dict(), "optimiser": self._optimiser.state()})


def _load(folder: Path) -> tuple[dict[str, Any], Backbone, Tokenizer]:
    checkpoint = load_checkpoint(folder)
    backbone = checkpoint.backbone.eval().requires_grad_(requires_grad=False)
    return dict(checkpoint.raw), backbone, Tokenizer.from_file(str(folder / "tokenizer.json"))


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backbone", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--layers", type=int, default=LAYERS)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--published", type=int, metavar="N", help="the published recipe, N windows an update")
    args = parser.parse_args()
    warnings.filterwarnings("ignore", message="Mismatch dtype")
    torch.set_num_threads(args.threads)
    MrpRun(args.backbone, args.out, args.layers, args.steps, args.seed, args.published).run()


if __name__ == "__main__":
    main()
