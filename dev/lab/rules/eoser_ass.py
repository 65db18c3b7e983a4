"""EOS early rejection and ascending step sizes (arXiv 2509.23924), within a block.

`sampling`, `ass_sampling` and `get_num_transfer_tokens_ass` of eval/generate.py of yjyddq/EOSER-ASS-RL. EOSER weighs
the confidence of an end token by a factor that rises from `gamma` to 1 over the steps. ASS reveals 1, 2, 4, … positions
in successive steps, and all that are left in the last. Both count the steps of a block here, not of the whole answer.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from dev.lab.rules.method import COUNT, NUMBER, Choose, Method, Reveal
from service.decode.block import Block, Pick
from service.decode.policy import Prediction

#: the end token of the demo
_END = 3


class Eoser(Reveal, frozen=True):
    """`tokens_per_step` positions a step, the most confident first, end tokens later."""

    mode: ClassVar[str] = "eoser"
    gamma: Annotated[float, NUMBER] = 0.4
    tokens_per_step: Annotated[int, COUNT] = 1

    def begin(self, block: Block) -> Choose:
        """Counts the steps of the block."""
        masked = len(block.masked)
        steps = -(-masked // self.tokens_per_step)

        def choose(reading: Prediction) -> tuple[Pick, ...]:
            step = (masked - len(reading.picks)) // self.tokens_per_step
            passed = step / max(1, steps - 1)
            return _surest(reading, self.gamma + (1 - self.gamma) * passed)[: self.tokens_per_step]

        return choose


class Ascending(Reveal, frozen=True):
    """1, 2, 4, … positions, the most confident first. `gamma` 1: end tokens are not held back."""

    mode: ClassVar[str] = "ass"
    gamma: Annotated[float, NUMBER] = 1.0

    def begin(self, block: Block) -> Choose:
        """Counts the steps of the block."""
        steps = max(1, len(block.masked).bit_length() - 1)
        step = 0

        def choose(reading: Prediction) -> tuple[Pick, ...]:
            nonlocal step
            step += 1
            passed = (2**step - 1) / 2**steps
            ranked = _surest(reading, self.gamma + (1 - self.gamma) * passed)
            return ranked if step >= steps else ranked[: 2 ** (step - 1)]

        return choose


def _surest(reading: Prediction, factor: float) -> tuple[Pick, ...]:
    """By confidence, that of end tokens times the factor; ties go to the lowest position."""
    return tuple(sorted(reading.picks, key=lambda pick: -pick.confidence * (factor if pick.token == _END else 1)))


METHOD = Method(
    "EOSER, ASS",
    "arXiv 2509.23924",
    "both, by the steps of a block",
    (Eoser(), Ascending(0.01)),
    (Eoser(0.01), Eoser(0.4, 2), Ascending()),
)
