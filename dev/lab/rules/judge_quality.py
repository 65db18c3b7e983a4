"""How good judges of fresh tokens are: `python -m dev.lab.rules.judge_quality --problems 200 --output FILE`.

Decodes as the published `remask` does. Wherever several tokens are fresh, all judges are asked. A token is *right* if
the backbone would choose it at its place, taking the fresh places one after the other, the surest first, and leaving
out those that were not right: what `static` would decide there. An area under the ROC curve (AUC) is the chance that a
right token gets a higher value than a wrong one.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import torch

from dev.lab.rules.compare import requests_of
from dev.lab.rules.harness import tasks_of
from dev.lab.rules.judged_remask import backbone_each, backbone_in_turn, mrp_each, mrp_in_turn, mrp_together
from service.decode.canvas import Canvas
from service.decode.knobs import THRESHOLD
from service.decode.mode import DecodingMode
from service.decode.policy import Decoding, Evaluate
from service.decode.rules import ConfidenceAbove, Rule
from service.demo import CHECKPOINT, heldout_problems
from service.engine import Engine, EngineConfig
from service.model import load_checkpoint


@dataclass(frozen=True, slots=True)
class Judged:
    """A fresh token, and the probabilities that the judges give it.

    `kept`: whether the published rule kept it, `only_best`: by its keep rule. `fresh`: how many tokens were revealed
    with it. `best_alone`: no token is likelier for the backbone with the other fresh ones in place.
    """

    threshold: float
    fresh: int
    right: bool
    confidence: float
    mrp: float
    mrp_each: float
    mrp_in_turn: float
    backbone_each: float
    best_alone: bool
    best_mrp_each: bool
    kept: bool
    only_best: bool


class Watched(DecodingMode, frozen=True):
    """`remask`, which asks all judges."""

    mode: ClassVar[str] = "watched-remask"
    likeliest: ClassVar[int] = 8
    seen: ClassVar[list[Judged]] = []
    threshold: Annotated[float, THRESHOLD] = 0.3

    @property
    def needs_mrp(self) -> bool:
        """Always."""
        return True

    @property
    def rule(self) -> Rule:
        """The positions above the threshold."""
        return ConfidenceAbove(self.threshold)

    def decode(self, canvas: Canvas) -> Decoding:
        """As `remask`."""
        while not canvas.block.complete:
            (reading,) = yield Evaluate((canvas.block,))
            fresh = sorted(self.rule(reading), key=lambda pick: -pick.confidence)
            revoked: tuple[int, ...] = ()
            if len(fresh) > 1:
                asked = (canvas.block, reading, fresh)
                together = yield from mrp_together(*asked)
                each = yield from mrp_each(*asked)
                in_turn = yield from mrp_in_turn(*asked)
                alone = yield from backbone_each(*asked)
                right = yield from backbone_in_turn(*asked)
                keep = max(together, key=lambda one: one.probability).position
                low = {one.position for one in together if one.probability < self.threshold}
                revoked = tuple(sorted(low - {keep}))
                for pick, *said in zip(fresh, together, each, in_turn, alone, right, strict=True):
                    one, other, turn, lone, true = said
                    self.seen.append(
                        Judged(
                            self.threshold, len(fresh), true.best, pick.confidence, one.probability,
                            other.probability, turn.probability, lone.probability, lone.best, other.best,
                            pick.position not in revoked, pick.position in low and pick.position == keep,
                        )
                    )  # fmt: skip
            canvas.reveal("denoise", fresh)
            if revoked:
                canvas.remask("mrp", revoked)


def auc(right: Sequence[float], wrong: Sequence[float]) -> float:
    """The chance that one of `right` is above one of `wrong`; ties count a half."""
    if not right or not wrong:
        return float("nan")
    values = torch.tensor([*right, *wrong], dtype=torch.float64)
    _, inverse, counts = values.unique(return_inverse=True, return_counts=True)
    ends = counts.cumsum(0).double()
    ranks = (ends - (counts - 1) / 2)[inverse]
    total = ranks[: len(right)].sum().item()
    return (total - len(right) * (len(right) + 1) / 2) / (len(right) * len(wrong))


def why_kept(one: Judged) -> str:
    """Why the published rule kept a wrong token: the first reason that holds."""
    if one.only_best:
        return "kept as the best of all doubtful ones"
    if one.best_alone:
        return "the other fresh tokens support it: the backbone, too, finds it best beside them"
    if one.mrp < 0.5:
        return "another token is likelier for MRP, too: the doubt bound is too low"
    return "MRP finds it likelier than not, the backbone does not: the judge is wrong"


def summary(seen: Sequence[Judged]) -> dict[str, Any]:
    """The table's numbers for one threshold."""
    right, wrong = [one for one in seen if one.right], [one for one in seen if not one.right]
    values = ("confidence", "mrp", "mrp_each", "mrp_in_turn", "backbone_each")
    kept = [one for one in wrong if one.kept]
    lost = [one for one in right if not one.kept]
    return {
        "tokens": len(seen),
        "fresh_together": round(sum(one.fresh for one in seen) / max(1, len(seen)), 2),
        "wrong": len(wrong),
        "wrong_kept": len(kept),
        "right_taken_back": len(lost),
        "auc": {name: round(auc([getattr(one, name) for one in right], [getattr(one, name) for one in wrong]), 4)
                for name in values},
        "why_kept": dict(Counter(map(why_kept, kept)).most_common()),
        "wrong_best_alone": sum(one.best_alone for one in wrong),
        "right_not_best_alone": sum(not one.best_alone for one in right),
    }  # fmt: skip


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--problems", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    engine = Engine(load_checkpoint(CHECKPOINT), EngineConfig(prefix_cache=False, max_rows=2048))
    tasks = tasks_of(heldout_problems(given.problems, given.seed))
    stops, found = frozenset(engine.model.eos_token_ids), {}
    for threshold in (0.1, 0.2, 0.3, 0.5):
        Watched.seen.clear()
        for start in range(0, len(tasks), 16):
            engine.generate(requests_of(Watched(threshold), tasks[start : start + 16], stops))
        found[str(threshold)] = summary(Watched.seen)
        print(threshold, json.dumps(found[str(threshold)], indent=1), flush=True)  # noqa: T201 - its purpose
    if given.output:
        given.output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
