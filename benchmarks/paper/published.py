"""The paper's numbers for the 8B model: "Multi-token Residual Prediction" (arXiv 2605.18817).

They are greedy, in blocks of 16 and in bfloat16, on the paper's hardware. `benchmarks.paper` and the stage `speed` of
`make gpu` put them beside ours.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from service.decode.mode import DecodingMode
from service.decode.modes import Direct, Dynamic, Remask, Speculative, Static

#: the block size of the paper
BLOCK_SIZE = 16
_EIGHT_BILLION = re.compile(r"(?<![\d.])8b", re.IGNORECASE)

#: the lowest and the highest speed-up over static, of all tasks
_SPEEDUPS: Mapping[DecodingMode, tuple[float, float]] = {
    Speculative(3): (1.26, 1.40),
    Direct(1): (1.51, 1.61),
    Direct(2): (1.75, 1.91),
}
#: task -> mode -> accuracy in percent
_ACCURACIES: Mapping[str, Mapping[DecodingMode, float]] = {
    "gsm8k": {Static(): 90.9, Direct(1): 90.1, Direct(2): 89.2, Dynamic(0.5): 67.9, Remask(0.5): 82.3},
    "humaneval": {Static(): 73.8, Direct(1): 67.1, Direct(2): 64.0, Dynamic(0.5): 32.3, Remask(0.5): 54.9},
}


@dataclass(frozen=True, slots=True)
class PaperCell:
    """The paper's numbers. `accuracy`: in percent. `speedup`: the range of throughputs over static on all tasks."""

    accuracy: float | None = None
    speedup: tuple[float, float] | None = None

    def __str__(self) -> str:
        """The numbers as text, empty without any."""
        speedup = f"{self.speedup[0]:.2f} to {self.speedup[1]:.2f} x" if self.speedup else ""
        return ", ".join(filter(None, [f"{self.accuracy:.1f} %" if self.accuracy else "", speedup]))


def paper_cell(model: str, block_size: int, mode: DecodingMode, task: str = "") -> PaperCell:
    """The paper's numbers for a mode. `model`: a name or a shape; only those of 8B have numbers, in blocks of 16.

    `task`: empty for the speed-up alone.
    """
    if block_size != BLOCK_SIZE or not _EIGHT_BILLION.search(model):
        return PaperCell()
    return PaperCell(_ACCURACIES.get(task, {}).get(mode), _SPEEDUPS.get(mode))
