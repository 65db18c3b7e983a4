"""On which terms `speculative` drafts when it is to choose by itself. Said by the engine; knows none."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Terms:
    """`row`: what a further row of the next forward costs, in tokens that could be decoded in its time.

    `states`: the most that may be verified. `mrp_steps`: the MRP forwards that their drafts may take. By default
    nothing is drafted.
    """

    row: float = 1.0
    states: int = 0
    mrp_steps: int = 0

    def at_most(self, states: int) -> Terms:
        """The same with no more states."""
        return self if self.states <= states else Terms(self.row, states, self.mrp_steps)
