"""The checkpoint shipped with the package, its held-out problems and their checker. Imports no torch."""

import json
import random
from dataclasses import dataclass
from pathlib import Path

from service.demo.checker import check

__all__ = ["CHECKPOINT", "HELDOUT_FILE", "Problem", "check", "heldout_problems"]

#: Folder of the demo checkpoint, in the published layout.
CHECKPOINT = Path(__file__).parent
HELDOUT_FILE = CHECKPOINT / "heldout.jsonl"


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem. `prompt`: the user's message."""

    prompt: str

    def check(self, answer: str) -> bool:
        return check(self.prompt, answer)


def heldout_problems(count: int | None = None, seed: int = 0) -> list[Problem]:
    """`count` of the shipped problems, drawn without repetition, None: all in order. ValueError if there are fewer."""
    with HELDOUT_FILE.open(encoding="utf-8") as lines:
        problems = [Problem(prompt=json.loads(line)["prompt"]) for line in lines]
    if count is None:
        return problems
    if not 0 < count <= len(problems):
        raise ValueError(f"count is {count}, allowed are 1 to {len(problems)}")
    return random.Random(seed).sample(problems, count)
