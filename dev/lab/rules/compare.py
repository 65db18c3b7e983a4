"""Plans beside each other on the demo's held-out problems: accuracy, tokens per forward, CPU time, MRP's forwards.

`python -m dev.lab.rules.compare GROUP --problems 300 --output FILE`; the groups are in `groups.py`. Plans take turns
chunk by chunk. `tokens/round` counts the forwards that decide (the canvas's own state), so an oracle's own forwards do
not hide what its judgement would be worth.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dev.lab.rules.groups import GROUPS
from dev.lab.rules.harness import tasks_of
from service.bench.calibration import Task
from service.decode.mode import DecodingMode
from service.demo import CHECKPOINT, heldout_problems
from service.engine import Completion, Engine, EngineConfig, GenerationRequest, SamplingParams
from service.engine.request import LogprobsRequest
from service.model import load_checkpoint
from service.quality.schema import Plan


@dataclass(slots=True)
class Score:
    """What a plan reached. Times are CPU seconds of one thread."""

    plan: DecodingMode
    answers: int = 0
    right: int = 0
    same_as_first: int = 0
    tokens: int = 0
    forwards: int = 0
    rounds: int = 0
    mrp: int = 0
    remasked: int = 0
    proposed: int = 0
    accepted: int = 0
    cpu_s: float = 0.0

    def add(self, completions: Sequence[Completion], right: int, same: int, cpu_s: float) -> None:
        """Adds a chunk."""
        self.answers, self.right = self.answers + len(completions), self.right + right
        self.same_as_first, self.cpu_s = self.same_as_first + same, self.cpu_s + cpu_s
        for one in completions:
            stats = one.stats
            self.tokens += stats.decoded_tokens
            self.forwards += stats.forwards.denoise + stats.forwards.verify
            self.rounds += sum(step.kind != "mrp" for event in one.blocks for step in event.steps)
            self.mrp += stats.forwards.mrp
            self.remasked += stats.remasked
            self.proposed, self.accepted = self.proposed + stats.drafts_proposed, self.accepted + stats.drafts_accepted

    def row(self) -> dict[str, Any]:
        """The numbers of a table."""
        return {
            "plan": Plan.of(self.plan).name,
            "answers": self.answers,
            "accuracy": round(self.right / self.answers, 4),
            "tokens_per_round": round(self.tokens / self.rounds, 3),
            "tokens_per_forward": round(self.tokens / self.forwards, 3),
            "mrp_per_round": round(self.mrp / self.rounds, 3),
            "remasked_per_round": round(self.remasked / self.rounds, 3),
            "ms_per_token": round(1e3 * self.cpu_s / self.tokens, 3),
            "accepted": round(self.accepted / self.proposed, 3) if self.proposed else None,
            "same_as_first": self.same_as_first,
        }


def requests_of(plan: DecodingMode, tasks: Sequence[Task], stops: frozenset[int]) -> list[GenerationRequest]:
    """One request a task, greedy."""
    asked = LogprobsRequest(likeliest) if (likeliest := getattr(plan, "likeliest", 0)) else None
    return [
        GenerationRequest(
            str(number), task.prompt_token_ids, plan, SamplingParams(), 128, stop_token_ids=stops, logprobs=asked
        )
        for number, task in enumerate(tasks)
    ]


def measure(engine: Engine, tasks: Sequence[Task], plans: Sequence[DecodingMode], together: int) -> list[Score]:
    """All plans over all tasks, in turn."""
    scores = [Score(plan) for plan in plans]
    stops = frozenset(engine.model.eos_token_ids)
    for start in range(0, len(tasks), together):
        chunk = tasks[start : start + together]
        first: list[Completion] = []
        for score in scores:
            requests = requests_of(score.plan, chunk, stops)
            begin = time.thread_time()
            done = engine.generate(requests)
            spent = time.thread_time() - begin
            first = first or done
            right = sum(task.is_right(one.token_ids) for task, one in zip(chunk, done, strict=True))
            same = sum(one.token_ids == other.token_ids for one, other in zip(done, first, strict=True))
            score.add(done, right, same, spent)
    return scores


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("group", choices=sorted(GROUPS))
    parser.add_argument("--problems", type=int, default=300)
    parser.add_argument("--together", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    engine = Engine(load_checkpoint(CHECKPOINT), EngineConfig(prefix_cache=False, max_rows=2048))
    tasks = tasks_of(heldout_problems(given.problems, given.seed))
    rows = [score.row() for score in measure(engine, tasks, GROUPS[given.group], given.together)]
    for row in rows:
        print(json.dumps(row), flush=True)  # noqa: T201 - what the program is for
    if given.output:
        given.output.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
