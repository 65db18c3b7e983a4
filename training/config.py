"""What a training of MRP is asked for: source, module, objective, schedule, budget. Knows no files."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from training.lessons import Objective
from training.optim import Schedule


@dataclass(frozen=True, slots=True)
class Source:
    """What is trained on what. `heldout`: share of the file's lines that is kept for the evaluation."""

    backbone: str
    data: Path
    block_size: int | None = None
    max_length: int = 2048
    window: int = 256
    heldout: float = 0.05


@dataclass(frozen=True, slots=True)
class Module:
    """The MRP module that is made."""

    layers: int = 1
    residual: bool = True


@dataclass(frozen=True, slots=True)
class Budget:
    """`rows` examples a batch, `batches` a step, whichever worker they are on; `steps` updates in all."""

    steps: int
    rows: int = 8
    batches: int = 1
    seed: int = 0
    bf16: bool = True
    clip: float = 1.0


@dataclass(frozen=True, slots=True)
class Keeping:
    """Where the result goes, how often a state is kept, on how many held-out batches it is judged."""

    out: Path
    save_every: int = 100
    judged: int = 8


@dataclass(frozen=True, slots=True)
class TrainingConfig:
    """All of one training."""

    source: Source
    objective: Objective
    schedule: Schedule
    budget: Budget
    keeping: Keeping
    module: Module = field(default_factory=Module)

    @property
    def drafts(self) -> int:
        """Applications in a row at the end of the training: what the result is made for."""
        return self.objective.phases[-1].applications

    def what_matters(self) -> dict[str, Any]:
        """Everything that the updates depend on, flat, as JSON has it."""
        parts = {name: value for name, value in asdict(self).items() if name != "keeping"}
        flat = {f"{part}.{key}": value for part, values in parts.items() for key, value in values.items()}
        return {key: str(value) if isinstance(value, Path) else value for key, value in flat.items()}
