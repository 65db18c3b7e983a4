"""Fast-dLLM's factor (arXiv 2505.22618, section 3.3): the more positions at once, the surer each must be.

The n surest positions are revealed for the largest n with (n + 1)(1 - p) < factor, p the least of their confidences.
`get_transfer_index_dynamic` of its code also reveals the last position where only that one fails; this is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, ClassVar

from dev.lab.rules.method import NUMBER, Choose, Method, Reveal
from service.decode.block import Block, Pick
from service.decode.knobs import Knob
from service.decode.policy import Prediction


def _surest(picks: Sequence[Pick]) -> list[Pick]:
    return sorted(picks, key=lambda pick: -pick.confidence)


_ORDERS: Mapping[str, Callable[[Sequence[Pick]], Sequence[Pick]]] = {"any": _surest, "left": list}
_ORDER = Knob(str, "the order in which positions are tried", choices=tuple(_ORDERS))


class Factor(Reveal, frozen=True):
    """As many of the surest positions as the factor allows. `spared`: how many doubtful ones are not counted."""

    mode: ClassVar[str] = "factor"
    factor: Annotated[float, NUMBER] = 1.0
    order: Annotated[str, _ORDER] = "any"
    spared: Annotated[int, Knob(int, "doubtful positions that are not counted", least=0)] = 0

    def begin(self, block: Block) -> Choose:  # noqa: ARG002 - nothing is remembered
        """Each reading by itself."""
        return self._choose

    def _choose(self, reading: Prediction) -> tuple[Pick, ...]:
        ordered = _ORDERS[self.order](reading.picks)
        doubts = list[float]()
        for number, pick in enumerate(ordered):
            doubts = sorted([*doubts, 1 - pick.confidence])
            counted = doubts[: len(doubts) - self.spared]
            if number and counted and (len(counted) + 1) * counted[-1] >= self.factor:
                return tuple(ordered[:number])
        return tuple(ordered)


METHOD = Method(
    "Fast-dLLM's factor",
    "arXiv 2505.22618",
    "whole; from left to right, one doubt spared: ours",
    (Factor(0.5), Factor(1.0), Factor(0.5, "left", 1)),
    (Factor(0.25), Factor(1.5), *(Factor(value, "left", 1) for value in (0.1, 0.25, 1.0))),
)
