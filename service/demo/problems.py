"""The demo's held-out problems: never seen in training, shipped as text beside the checkpoint.

Which problems are held out is decided by a hash of the problem's text alone, so training and this
file cannot disagree. Pure Python, no torch.
"""

from __future__ import annotations

import hashlib
import json
import random
from dataclasses import dataclass
from pathlib import Path

from service.demo.checker import check

HELDOUT_FILE = Path(__file__).parent / "heldout.jsonl"
_HELDOUT_OF_256 = 26


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem: `prompt` is what the user writes."""

    prompt: str

    def check(self, answer: str) -> bool:
        """Whether the answer's text is right by the strict checker."""
        return check(self.prompt, answer)


def is_heldout(prompt: str) -> bool:
    """Whether a problem is kept out of training (about one in ten)."""
    return hashlib.sha256(prompt.encode()).digest()[0] < _HELDOUT_OF_256


def heldout_problems(count: int | None = None, seed: int = 0) -> list[Problem]:
    """`count` shipped problems drawn without repetition; None gives all, in file order.

    ValueError if the file holds fewer.
    """
    with HELDOUT_FILE.open(encoding="utf-8") as lines:
        problems = [Problem(prompt=json.loads(line)["prompt"]) for line in lines]
    if count is None:
        return problems
    if not 0 < count <= len(problems):
        raise ValueError(f"{count} problems were asked for, allowed are 1 to {len(problems)}")
    return random.Random(seed).sample(problems, count)
