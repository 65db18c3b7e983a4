"""The quality of an MRP module on held-out examples: divergence, accepted drafts, tokens per forward.

It is measured on static decodes after the true earlier blocks, with MRP and with the backbone's stale logits instead
("zero"). Use these numbers during training. Publish the engine's own counts (`python -m benchmarks.evaluate`).
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from service.model import Backbone, Mrp
from training.batch import Batch
from training.chains import Rows, chains_of
from training.losses import divergence, exact_logits
from training.rollout import EndIds, Trajectory, roll_out
from training.simulate import Drafting, Yield, count_rounds, drafts_met

Models = tuple[Backbone, Mrp | None]


@dataclass(slots=True)
class Score:
    """The scores of one model over all batches.

    `divergence`: KL to the backbone per masked position, after each application. `accepted`: share of the first,
    second, … drafts that are accepted. `tokens_per_forward`: of speculative decoding with `applications` drafts.
    """

    applications: int
    _sums: Tensor = field(init=False)
    _drafts: Tensor = field(init=False)
    _yield: Yield = field(default=Yield(0, 0), init=False)

    def __post_init__(self) -> None:
        self._sums, self._drafts = (torch.zeros(2, self.applications, dtype=torch.float64) for _ in range(2))

    @property
    def divergence(self) -> list[float]:
        """The divergence after each application."""
        mean: list[float] = (self._sums[0] / self._sums[1]).tolist()
        return mean

    @property
    def accepted(self) -> list[float]:
        """The share of k-th drafts that are right, whether or not the drafts before them are."""
        share: list[float] = (self._drafts[0] / self._drafts[1]).tolist()
        return share

    @property
    def tokens_per_forward(self) -> float:
        """The tokens per forward of speculative decoding."""
        return self._yield.per_forward

    def numbers(self) -> dict[str, Any]:
        """All scores as a JSON object."""
        return {
            "divergence": self.divergence,
            "accepted": self.accepted,
            "tokens_per_forward": self.tokens_per_forward,
            "tokens": self._yield.tokens,
        }

    def add(self, sums: Tensor, met: Tensor, trajectory: Trajectory) -> None:
        """Adds the counts of one batch."""
        self._sums += sums
        for depth in range(self.applications):
            open_ = [step.open for step in trajectory.steps[depth + 1 :]]
            if open_:
                made = torch.stack(open_)
                held = met[: len(open_), depth] & made
                self._drafts[:, depth] += torch.stack([held.sum(), made.sum()]).to(self._drafts)
        self._yield += count_rounds(met.cpu(), trajectory)


@torch.no_grad()
def evaluate(
    models: tuple[Backbone, Mrp], batches: Iterable[Batch], end_id: EndIds, drafting: Drafting
) -> tuple[Score, Score]:
    """The scores of MRP and of zero, with drafts made as `drafting` says."""
    backbone, mrp = models
    drafts = drafting.drafts
    scores = Score(drafts), Score(drafts)
    for batch in batches:
        trajectory = roll_out(backbone, batch, end_id)
        both: tuple[Models, Models] = (models, (backbone, None))
        for score, pair in zip(scores, both, strict=True):
            met = drafts_met(pair, trajectory, end_id, drafting)
            refined = drafting.rows(backbone, mrp, trajectory, 1) if pair[1] else None
            score.add(_divergences(backbone, refined, trajectory, (end_id, drafts)), met, trajectory)
    return scores


def _divergences(backbone: Backbone, rows: Rows | None, trajectory: Trajectory, rule: tuple[EndIds, int]) -> Tensor:
    """Sums and counts `[2, applications]` over all starts. Without `rows` the anchor stays the same."""
    end_id, applications = rule
    sums, layout = torch.zeros(2, applications, dtype=torch.float64), trajectory.batch.layout
    for start in range(len(trajectory.steps) - 1):
        [chain], where = chains_of(trajectory, [start], list(range(1, applications + 1)), end_id)
        anchor = chain[0].hidden
        for depth, judged in enumerate(where):
            anchor = rows.refine(chain[depth + 1].tokens, anchor) if rows else anchor
            outputs = layout.outputs(chain[depth + 1].hidden), layout.outputs(anchor)
            each = divergence(*(exact_logits(backbone, hidden[judged]) for hidden in outputs))
            sums[:, depth] += torch.stack([each.sum().double(), judged.sum().double()])
    return sums
