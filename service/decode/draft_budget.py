"""What `speculative` may spend on drafts where it is to choose by itself. The engine sets it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DraftBudget:
    """`row`: what a further row of the next forward costs, in tokens that could be decoded in its time.

    `states`: the most that may be verified. `mrp_steps`: the MRP forwards that their drafts may take. By default
    nothing is drafted.
    """

    row: float = 1.0
    states: int = 0
    mrp_steps: int = 0

    def at_most(self, states: int) -> DraftBudget:
        """The same with no more states."""
        return self if self.states <= states else DraftBudget(self.row, states, self.mrp_steps)
