"""MRP's forwards for drafts ahead: they begin with the backbone's forward, before its results are read.

    host      begins all   waits     reads the backbone's results   reads MRP's, drafts, plans, begins all
    device    backbone ----------->  MRP ----------> MRP -------->  backbone ...

The host alone knows through which of the states that the backbone reads decoding passes. So the device reveals the
rule's picks in each of them (`forward/row_states.py`), and MRP reads the states after these picks. Then it reads the
states after the picks of its own predictions. The policy takes the row of the state for which it asks, and the other
rows are dropped. The best draft need not have the rule's picks. Then the policy asks for another state, and MRP's
forward begins in turn.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from service.decode.block import MASKED, Block
from service.decode.policy import Prediction, Query, Refine
from service.decode.rules import Rule
from service.engine.forward.rows import MAX_DRAFT, Anchor, Row
from service.engine.stored_blocks import unknown_state


class DraftsAhead:
    """MRP's forwards ahead, of one request.

    `follows`: whether the policy's query is about the state after the rule's picks in one that was read last.
    `num_unread`: the forwards of MRP that are not read.
    """

    __slots__ = ("_last", "_rule", "_size", "follows", "num_unread")

    def __init__(self, rule: Rule, block_size: int) -> None:
        self._rule, self._size = rule, block_size
        self._last = list[tuple[Row, Anchor]]()  # the last rows that have begun, and their anchors
        self.follows, self.num_unread = False, 0

    def revealing(self, rows: Sequence[Row]) -> list[Row]:
        """The backbone's rows of states, after which the device reveals the rule's picks, as far as there are lines."""
        return [
            replace(row, rule=self._rule, draft=number) if number <= MAX_DRAFT else row
            for number, row in enumerate(rows)
        ]

    def rows(self) -> list[Row]:
        """The rows of MRP's next forward: of states that may have masked positions, at first of two of them."""
        picks = self._rule.num_picks or 1
        states = [(row, anchor, max(0, row.state.tokens.count(MASKED) - picks)) for row, anchor in self._last]
        if not self.num_unread:  # later forwards have the same rows
            states = [state for state in states if state[0].rule is not None and state[2] > 1]
        if not any(masked for *_, masked in states):
            return []
        return [
            replace(row, state=unknown_state(self._size, masked), kind="mrp", anchor=anchor, on_device=True)
            for row, anchor, masked in states
        ]

    def begin(self, rows: Sequence[Row], anchors: Sequence[Anchor]) -> None:
        """A forward over these rows has begun."""
        self._last = list(zip(rows, anchors, strict=True))
        self.num_unread += rows[0].kind == "mrp"

    def receive(self, states: Sequence[Block], predictions: Sequence[Prediction], query: Query | None) -> None:
        """The policy has read the predictions of these states, or of the first ones, and asks the query."""
        self.follows = isinstance(query, Refine) and any(
            query.after.handle == prediction.handle and query.state == state.reveal(self._rule(prediction))
            for state, prediction in zip(states, predictions, strict=False)
        )
