"""Trains the demo's MRP module on static decodes of the frozen backbone.

In the first phase MRP is applied once, later twice and more in a row. Each application reads the state one pick later
and passes its anchor on. The later phases have an order loss, so that drafts come in the backbone's order. A revision
loss trains MRP for `remask`: it compares picks that were made in parallel with the backbone's opinion of each one when
the others are in place.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from service.model import Backbone, Mrp
from training.demo.batches import Batches
from training.lessons import Objective, Phase, Teacher
from training.losses import Weights
from training.optim import Clock, Optimiser
from training.trainer import Report, Trainer

RATE = 3e-3
_NEXT_PICK = 4.0
_LOG_EVERY = 50

PHASES = (
    Phase(0.0, 1, Weights(_NEXT_PICK, 0.0, 0.5)),
    Phase(0.35, 2, Weights(_NEXT_PICK, 0.25, 0.5)),
    Phase(0.6, 4, Weights(_NEXT_PICK, 0.5, 0.5)),
)


def train_mrp(
    models: tuple[Backbone, Mrp], batches: Batches, clock: Clock, save: Callable[[Backbone, Mrp], None], end_id: int
) -> None:
    """Trains until the clock is over. Calls `save` from time to time."""
    trainer = Trainer(Teacher(models, Objective(PHASES), end_id), Optimiser(models[1].named_parameters(), RATE))
    logged = torch.zeros(2)

    def after(report: Report) -> None:
        nonlocal logged
        logged += torch.tensor([report.chain, report.revision]) / _LOG_EVERY
        if report.step % _LOG_EVERY == 0:
            _log(clock, report, logged)
            logged = torch.zeros(2)
            save(*models)

    trainer.run(([batch] for batch in batches), clock, after)


def _log(clock: Clock, report: Report, means: torch.Tensor) -> None:
    chain, revision = means.tolist()
    minutes = clock.spent / 60
    print(
        f"mrp {minutes:5.1f} min  step {report.step}  K={report.applications}  {chain:.4f}  revision {revision:.4f}",
        flush=True,
    )
