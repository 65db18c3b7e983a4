"""The whole recipe of the demo checkpoint: `python -m training.demo.recipe --out DIR`.

The backbone begins shallow and is made deeper twice, since a shallow one learns most of the task in a fraction of the
time. It begins without text, since beside text it learns late to copy from a prompt (dev/lab/demo-diary.md). The same
command goes on from the last state, to the bit on the same machine. DIR/backbone is the backbone so far, DIR/mrp/demo
the result, in half precision. `--begin` goes on from such a backbone if the states are lost.
GLIBC_TUNABLES=glibc.malloc.hugetlb=1 makes it faster.
"""

import argparse
import random
import warnings
from copy import deepcopy
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer

from service.demo import check
from service.model import Backbone, load_checkpoint, parse_config, save_checkpoint
from training.demo.backbone import Part, Watcher, new_backbone, train
from training.demo.batches import TEXT_SHARE, Batches
from training.demo.checkpoint import SIZES, shape
from training.demo.disguise import Disguise
from training.demo.growth import deeper
from training.demo.judge import accuracy
from training.demo.mrp import MrpRun
from training.demo.tasks import draw
from training.demo.text import Windows, library_files
from training.demo.tokenizer import save_tokenizer, train_tokenizer
from training.state import RunFolder

BLOCK, BATCH = SIZES["block_size"], 24


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage of the backbone. `layers`: its depth. `text`: the share of windows of text among the examples.

    `disguised`: the share of tasks with other names and things. `falling`: the learning rate falls in the second half.
    """

    layers: int
    steps: int
    text: float
    disguised: float = 0.0
    falling: bool = False


STAGES = (
    Stage(7, 6000, text=0.0, disguised=0.5),
    Stage(14, 10000, text=TEXT_SHARE),
    Stage(28, 12000, text=TEXT_SHARE, falling=True),
)
_JUDGED = 150
#: the file beside a backbone that has the number of its updates
_UPDATES = "updates.txt"


class Recipe:
    """One run in a folder."""

    def __init__(self, out: Path, seed: int, begin: Path | None = None) -> None:
        self._out, self._seed, self._begin = out, seed, begin
        self._tokenizer = Tokenizer.from_file(str(begin / "tokenizer.json")) if begin else _tokenizer(out, seed)
        rng = random.Random(seed)
        self._problems = [draw(rng, heldout=True).prompt for _ in range(_JUDGED)]

    def run(self) -> None:
        """Trains all stages, then MRP, from the last state on."""
        torch.manual_seed(self._seed)
        (backbone, made), first = self._beginning(), 0
        for number, stage in enumerate(STAGES):
            if made < first + stage.steps:
                backbone = deeper(backbone, parse_config(shape(self._tokenizer, stage.layers)))
                for layer in backbone.layers:
                    layer.compile(dynamic=True)  # a fifth faster; an update is bound by small operations
                part = Part(first, stage.steps, stage.falling, made=max(0, made - first))
                plan = {"seed": self._seed, "sizes": SIZES, "batch": BATCH, "first": first, "stage": asdict(stage)}
                folder = RunFolder(self._out / f"stage-{number}", plan)
                train(backbone, self._batches(stage), part, folder, self._watcher())
            first += stage.steps
        MrpRun(self._out / "backbone", self._out / "mrp").run()

    def _beginning(self) -> tuple[Backbone, int]:
        """The backbone that the training begins with, and the updates that it has."""
        if self._begin is None:
            return new_backbone(parse_config(shape(self._tokenizer, STAGES[0].layers))), 0
        backbone = load_checkpoint(self._begin).backbone.train().requires_grad_(requires_grad=True)
        made = int((self._begin / _UPDATES).read_text(encoding="utf-8"))
        self._watcher().save(backbone, made)
        return backbone, made

    def _batches(self, stage: Stage) -> Batches:
        windows = Windows(self._tokenizer, library_files(heldout=False)) if stage.text else None
        change = Disguise.of(self._tokenizer, stage.disguised)
        return Batches(self._tokenizer, BLOCK, BATCH, self._seed, windows, draw, change=change, share=stage.text)

    def _watcher(self) -> Watcher:
        def save(backbone: Backbone, updates: int) -> None:
            save_checkpoint(
                self._out / "backbone", shape(self._tokenizer, len(backbone.layers)), deepcopy(backbone).half(), None
            )
            save_tokenizer(self._tokenizer, self._out / "backbone")
            (self._out / "backbone" / _UPDATES).write_text(f"{updates}\n", encoding="utf-8")

        def judge(backbone: Backbone) -> str:
            right = accuracy(backbone, self._tokenizer, self._problems, BLOCK, check)
            return f"static {right:.3f} of {len(self._problems)} held-out problems"

        return Watcher(save, judge)


def _tokenizer(out: Path, seed: int) -> Tokenizer:
    """The run's tokenizer, trained on the first call."""
    file = out / "tokenizer.json"
    if not file.is_file():
        save_tokenizer(train_tokenizer(seed, texts=library_files(heldout=False), draw=draw), out)
    tokenizer: Tokenizer = Tokenizer.from_file(str(file))
    return tokenizer


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for states and the result")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--begin", type=Path, help="folder of a backbone of an earlier run, DIR/backbone")
    args = parser.parse_args()
    warnings.filterwarnings("ignore", message="Mismatch dtype")
    torch.set_num_threads(args.threads)
    Recipe(args.out, args.seed, args.begin).run()


if __name__ == "__main__":
    main()
