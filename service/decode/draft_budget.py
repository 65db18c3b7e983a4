"""The draft budget that the engine gives to `speculative` with `mrp_steps: auto`."""

from __future__ import annotations

from typing import NamedTuple


class DraftBudget(NamedTuple):
    """What the drafts of one round may cost.

    `row`: the cost of one more row in the next forward, as the number of tokens that could be decoded in its time.
    `states`: the most states to verify. `mrp_steps`: the most MRP forwards for drafting them. By default nothing is
    drafted.
    """

    row: float = 1.0
    states: int = 0
    mrp_steps: int = 0

    def at_most(self, states: int) -> DraftBudget:
        """The budget with at most `states` states."""
        return self if self.states <= states else DraftBudget(self.row, states, self.mrp_steps)
