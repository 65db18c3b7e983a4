"""The demo's fourth edition while it is made: plans on its held-out problems, by the engine.

`python -m dev.lab.edition4 CHECKPOINT --plan static --plan "direct mrp_steps=2" --plan "direct mrp_steps=2 zero"`.
`python -m benchmarks.evaluate` asks the shipped edition's problems.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import defaultdict
from pathlib import Path

import torch

from benchmarks.evaluation import Score, Variant, evaluate
from service.calibration.plans import parse_plan
from service.calibration.prompts import PromptTask
from service.demo import check
from service.engine import Engine, EngineConfig, SamplingParams
from service.model import LoadOptions, load_checkpoint
from service.text import TextCodec
from training.demo.tasks import draw

PLANS = (
    "static", "sequential", "sequential entropy_bound=0.1", "sequential entropy_bound=0.3",
    "sequential entropy_bound=1.0", "dynamic threshold=0.5", "dynamic threshold=0.7", "dynamic threshold=0.9",
)  # fmt: skip
_KINDS = {"Form:": "form", "Write": "code"}


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--plan", action="append", help="with `zero` at the end, MRP's output is 0")
    parser.add_argument("--problems", type=int, default=300)
    parser.add_argument("--together", type=int, default=16)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rng = random.Random(options.seed)  # noqa: S311 (nothing secret)
    prompts = list(dict.fromkeys(draw(rng, heldout=True).prompt for _ in range(3 * options.problems)))[
        : options.problems
    ]
    tasks = _tasks(options.checkpoint, prompts)
    plans = [_plan(text) for text in options.plan or PLANS]
    engines = {"mrp": _engine(options.checkpoint, zero=False), "zero": _engine(options.checkpoint, zero=True)}
    scores: list[Score] = []
    for latest in evaluate(engines, tasks, plans, SamplingParams(0.0), (96, options.together)):
        scores = latest
    for score in scores:
        sys.stdout.write(json.dumps(_row(score, tasks, prompts)) + "\n")


def _plan(text: str) -> Variant:
    plan = text.removesuffix(" zero")
    return Variant(parse_plan(plan), "mrp" if plan == text else "zero")


def _engine(folder: Path, *, zero: bool) -> Engine:
    checkpoint = load_checkpoint(folder, LoadOptions(mrp_zero=zero))
    return Engine(checkpoint, EngineConfig(prefix_cache=False))


def _tasks(folder: Path, prompts: list[str]) -> list[PromptTask]:
    codec = TextCodec.load(folder)

    def task(prompt: str) -> PromptTask:
        ids = codec.encode_message(prompt)
        return PromptTask(tuple(ids), lambda answer: check(prompt, codec.decode(answer)))

    return [task(prompt) for prompt in prompts]


def _row(score: Score, tasks: list[PromptTask], prompts: list[str]) -> dict[str, object]:
    kinds: dict[str, list[bool]] = defaultdict(list)
    for prompt, task, completion in zip(prompts, tasks, score.completions, strict=True):
        kinds[_KINDS.get(prompt.split()[0], "story")].append(task.is_right(completion.token_ids))
    return {
        "plan": f"{score.variant.name} {score.variant.engine}",
        "accuracy": round(score.accuracy, 3),
        "by_kind": {kind: round(sum(right) / len(right), 3) for kind, right in sorted(kinds.items())},
        "tokens_per_forward": round(score.tokens_per_forward, 3),
        "tokens_per_cpu_second": round(score.tokens_per_cpu_second),
        "same_as_first": score.same_as_first,
    }


if __name__ == "__main__":
    main()
