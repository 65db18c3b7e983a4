# ruff: noqa: PLR0915, T201 (a laboratory script)
"""Trains MRP for the shipped demo's backbone with other losses for equal CPU time: `python -m dev.lab.losses OUT …`.

`--weights` changes the weights of all phases, `--objective` the fields of the objective. `--begin` starts from the
shipped module instead of a new one, with four applications from the first update on.
"""

import argparse
import json
import time
import warnings
from dataclasses import replace
from itertools import islice
from pathlib import Path

import torch
from tokenizers import Tokenizer

from service.demo import CHECKPOINT
from service.model import load_checkpoint, parse_config
from training.demo import mrp as demo
from training.demo.batches import Batches
from training.demo.checkpoint import export
from training.demo.tasks import draw
from training.demo.text import Windows, library_files
from training.demo.tokenizer import END, control
from training.evaluation import evaluate
from training.lessons import Objective, Phase, Teacher
from training.module import new_mrp
from training.optim import Optimiser, Schedule
from training.publish import mrp_config
from training.simulate import Drafting
from training.trainer import Report, Trainer


class Cpu:
    """Progress by the process's CPU seconds."""

    def __init__(self, seconds: float) -> None:
        self._first, self._seconds = time.process_time(), seconds

    @property
    def share(self) -> float:
        """The share of the seconds that are over."""
        return min(1.0, (time.process_time() - self._first) / self._seconds)


def numbers(words: list[str]) -> dict[str, float]:
    """`name=value` words."""
    return {name: float(value) if "." in value else int(value) for name, value in (word.split("=") for word in words)}


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--weights", nargs="*", default=[])
    parser.add_argument("--objective", nargs="*", default=[])
    parser.add_argument("--begin", action="store_true")
    parser.add_argument("--seconds", type=float, default=330)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rate", type=float)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    warnings.filterwarnings("ignore", message="Mismatch dtype")
    torch.set_num_threads(1)
    checkpoint = load_checkpoint(CHECKPOINT)
    tokenizer = Tokenizer.from_file(str(CHECKPOINT / "tokenizer.json"))
    backbone, end = checkpoint.backbone.eval().requires_grad_(requires_grad=False), control(tokenizer, END)
    raw = mrp_config(dict(checkpoint.raw), {"num_nextn_predict_layers": args.layers, "mrp_default_steps": 1})
    torch.manual_seed(args.seed)
    mrp = new_mrp(parse_config(raw), backbone)
    if args.begin:
        mrp.load_state_dict(checkpoint.mrp.state_dict())
    mrp.train().requires_grad_(requires_grad=True)
    phases = (Phase(0.0, 4, demo.PHASES[-1].weights),) if args.begin else demo.PHASES
    phases = tuple(replace(phase, weights=replace(phase.weights, **numbers(args.weights))) for phase in phases)
    objective = Objective(phases, **({"passes": demo.PASSES} | numbers(args.objective)))
    rate = args.rate or (1e-3 if args.begin else demo.RATE)
    optimiser = Optimiser(mrp.named_parameters(), Schedule(rate, 50 if args.begin else 150))
    block, ends = raw["block_size"], end
    stream = Batches(
        tokenizer,
        block,
        args.batch,
        args.seed + 10 * args.begin,
        Windows(tokenizer, library_files(heldout=False)),
        draw,
    )
    chains = []

    def after(report: Report) -> None:
        chains.append(report.chain)

    start = time.process_time()
    if args.seconds:
        rounds = ([batch] for batch in stream.numbered(0))
        Trainer(Teacher((backbone, mrp), objective, ends), optimiser, args.seed).run(rounds, Cpu(args.seconds), after)
    spent = time.process_time() - start
    mrp = mrp.half().float().eval().requires_grad_(requires_grad=False)
    export(args.out / "demo", raw, (backbone, mrp), tokenizer)
    tasks = Batches(tokenizer, block, 16, 2, draw=lambda rng: draw(rng, heldout=True)).numbered(0)
    mixed = Batches(
        tokenizer, block, 16, 2, Windows(tokenizer, library_files(heldout=True)), lambda rng: draw(rng, heldout=True)
    ).numbered(0)
    texts = (batch for batch in mixed if bool(batch.answer.all()))
    result = {"updates": optimiser.steps, "cpu": round(spent), "last": sum(chains[-100:]) / max(1, len(chains[-100:]))}
    start = time.process_time()
    for name, batches in (("tasks", tasks), ("text", texts)):
        torch.manual_seed(0)
        score, _ = evaluate((backbone, mrp), islice(batches, 10), ends, Drafting(4))
        scores = score.numbers()
        result[name] = {
            key: [round(x, 4) for x in value] if isinstance(value, list) else value for key, value in scores.items()
        }
    result["judge"] = round(time.process_time() - start)
    (args.out / "heldout.json").write_text(json.dumps(result) + "\n")
    print(args.out.name, json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
