"""Measures a checkpoint on the held-out problems by the serving engine: a markdown table for its card.

`python -m training.evaluate DIR [--problems N]`. Every mode, with MRP and with its output set to
zero. `mrp-serve eval` measures the same and more; this is for a recipe's last line.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer

from service.decode.params import Direct, Dynamic, ModeParams, Remask, Speculative, Static
from service.demo import Problem, heldout_problems
from service.engine import Completion, Engine, EngineConfig, GenerationRequest
from service.model import LoadOptions, load_checkpoint
from training.tokenizer import encode_prompt

THRESHOLDS = (0.3, 0.5, 0.7, 0.9)
MAX_NEW_TOKENS = 96
_TOGETHER = 50


@dataclass(frozen=True, slots=True)
class Plan:
    """A mode with its knobs, and the drafter: `mrp`, or `zero` for its output set to zero."""

    params: ModeParams
    drafter: str = "mrp"

    def __str__(self) -> str:
        knobs = [f"{name}={value}" for name, value in asdict(self.params).items()]
        return f"{' '.join([self.params.mode, *knobs])} | {self.drafter}"


@dataclass(frozen=True, slots=True)
class Score:
    """What a plan reached: accuracy, tokens per forward up to the end token, the completions."""

    accuracy: float
    per_forward: float
    completions: list[Completion]


def all_plans() -> list[Plan]:
    """Static first, then all modes; those that draft also with MRP at zero."""
    plain: list[ModeParams] = [Static(), *map(Dynamic, THRESHOLDS), *map(Remask, THRESHOLDS)]
    drafting = [mode(steps) for mode in (Speculative, Direct) for steps in (1, 2, 4)]
    return [Plan(mode) for mode in plain] + [Plan(mode, name) for mode in drafting for name in ("mrp", "zero")]


class Judge:
    """A checkpoint and the problems it is measured on."""

    def __init__(self, folder: Path, problems: list[Problem]) -> None:
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        config = EngineConfig(max_running=_TOGETHER)
        loaded = {name: load_checkpoint(folder, LoadOptions(mrp_zero=name == "zero")) for name in ("mrp", "zero")}
        self._engines = {name: Engine(checkpoint, config) for name, checkpoint in loaded.items()}
        self._stop = frozenset(loaded["mrp"].config.eos_token_ids)
        self._problems = problems

    def score(self, plan: Plan) -> Score:
        """Decodes all problems by one plan."""
        requests = [
            GenerationRequest(
                str(number),
                tuple(encode_prompt(self._tokenizer, problem.prompt)),
                plan.params,
                max_new_tokens=MAX_NEW_TOKENS,
                stop_token_ids=self._stop,
            )
            for number, problem in enumerate(self._problems)
        ]
        done = self._engines[plan.drafter].generate(requests)
        answers = [self._tokenizer.decode(list(c.token_ids), skip_special_tokens=False) for c in done]
        right = sum(problem.check(text) for problem, text in zip(self._problems, answers, strict=True))
        tokens = sum(completion.stats.decoded_tokens for completion in done)
        forwards = sum(c.stats.forwards.denoise + c.stats.forwards.verify for c in done)
        return Score(right / len(done), tokens / forwards, done)


def table(judge: Judge, plans: list[Plan]) -> Iterator[str]:
    """The markdown table's lines; the first plan is what the others are compared with."""
    yield "| mode | drafter | accuracy | tokens per forward | same as static |"
    yield "|---|---|---|---|---|"
    first = judge.score(plans[0])
    for plan in plans:
        score = first if plan is plans[0] else judge.score(plan)
        pairs = zip(score.completions, first.completions, strict=True)
        same = sum(one.token_ids == other.token_ids for one, other in pairs)
        yield f"| {plan} | {score.accuracy:.3f} | {score.per_forward:.2f} | {same} of {len(score.completions)} |"


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--problems", type=int, default=300)
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    for line in table(Judge(given.folder, heldout_problems(given.problems)), all_plans()):
        print(line, flush=True)


if __name__ == "__main__":
    main()
