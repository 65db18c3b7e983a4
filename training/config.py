"""The configuration of a training of MRP: source, module, objective, schedule, budget."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from training.lessons import Objective
from training.optim import Matrices, Schedule


@dataclass(frozen=True, slots=True)
class Source:
    """The backbone and the data. `heldout`: share of the file's lines that is kept for the evaluation.

    `max_length`: the most tokens of a conversation. `window`: the most target tokens of one example.
    """

    backbone: str
    data: Path
    block_size: int | None = None
    max_length: int = 2048
    window: int = 256
    heldout: float = 0.05


@dataclass(frozen=True, slots=True)
class Module:
    """The MRP module to make."""

    layers: int = 1
    residual: bool = True


@dataclass(frozen=True, slots=True)
class Budget:
    """`steps`: updates in all. `batches`: batches per update, of all workers together. `rows`: examples per batch.

    `clip`: the largest norm of a gradient. `tokens`: the most tokens of a batch with its padding, None for no limit.
    `matrices`: the optimiser of the layers' matrices.
    """

    steps: int
    rows: int = 8
    batches: int = 1
    seed: int = 0
    bf16: bool = True
    clip: float = 1.0
    tokens: int | None = None
    matrices: Matrices = "muon"


@dataclass(frozen=True, slots=True)
class Keeping:
    """`out`: folder of the result. `save_every`: updates between two saved states. `judged`: held-out batches."""

    out: Path
    save_every: int = 100
    judged: int = 8


@dataclass(frozen=True, slots=True)
class TrainingConfig:
    """The whole configuration of one training."""

    source: Source
    objective: Objective
    schedule: Schedule
    budget: Budget
    keeping: Keeping
    module: Module = field(default_factory=Module)

    @property
    def drafts(self) -> int:
        """The consecutive applications of MRP in the last phase, for which the result is made."""
        return self.objective.phases[-1].applications

    def what_matters(self) -> dict[str, Any]:
        """All values on which the updates depend, as one flat JSON object."""
        parts = {name: value for name, value in asdict(self).items() if name != "keeping"}
        flat = {f"{part}.{key}": value for part, values in parts.items() for key, value in values.items()}
        return {key: str(value) if isinstance(value, Path) else value for key, value in flat.items()}
