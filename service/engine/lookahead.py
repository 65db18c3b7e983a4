"""Steps ahead: the next rows of one request, named before the predictions of its last ones are read.

Only their tokens are unknown, and these stay on the device (`forward/row_states.py`). The policy sees the predictions
later, in their order. Where the answer ends earlier, a row that was begun ahead is dropped. What is named here counts
while a forward of the request is not read; else the policy's query names the rows.

    a forward begins over a state, and its picks leave      the rows of the next forward
    masks, for sure                                         the block's
    no masks, for sure                                      the block's, only to store it, and the next block's first
    perhaps no masks: the prediction decides                the block's, which stores it if it is complete, and the next
                                                            block's first. What follows is known once the host has read
                                                            the forward before (`settle`)

Where drafts follow, the device verifies them and drafts anew (`forward/row_states.py`), so the next forward also has
rows of the new drafts. The policy then drafts the same states, and asks for their predictions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

from msgspec import Struct
from msgspec.structs import replace

from service.decode.block import MASKED, Block
from service.decode.mode import Pace
from service.decode.rules import Rule
from service.engine.drafting.planner import RequestDrafts
from service.engine.forward.rows import Anchor, Row
from service.engine.stored_blocks import StoredBlocks, unknown_state
from service.model.config import ModelConfig


class NextRow(Struct, frozen=True, gc=False):
    """The next row that a request can name. `masked`: the number of its state's masked positions, at most.

    `anchor`: the row that leads to its state; None: nothing of the block is revealed. `num_refined`: the most forwards
    of MRP before the backbone's next one. `perhaps_complete`: whether the next block's first row goes along.
    `has_drafts`: whether the device drafts after it has revealed the state.
    """

    index: int
    masked: int
    anchor: Anchor | None
    num_refined: int = 0
    perhaps_complete: bool = False
    has_drafts: bool = False


class Unsettled(NamedTuple):
    """The last rows that have begun, where the number of the first one's masked positions is not known.

    Its drafts follow it. The last row is the next block's if the first one's block may be complete. `num_refined`: as
    of `NextRow`.
    """

    rows: Sequence[Row]
    anchors: Sequence[Anchor]
    num_refined: int


class Lookahead:
    """The rows ahead of one request, by its mode's pace. `next`: the next row if it can be named.

    `drafts_read`: the numbers of the drafts among the last rows that have begun.
    """

    __slots__ = (
        "_blocks", "_drafts", "_gate", "_model", "_num_pages", "_rule", "_size", "drafts_read", "next", "pace",
        "unsettled",
    )  # fmt: skip

    def __init__(self, pace: Pace, rule: Rule, model: ModelConfig, blocks: StoredBlocks, drafts: RequestDrafts) -> None:
        self.pace, self._rule, self._gate = pace, rule, pace.gate or rule
        self._size, self._model = model.block_size, model
        self._blocks, self._drafts, self._num_pages = blocks, drafts, blocks.num_pages
        self.next: NextRow | None = None
        self.unsettled: Unsettled | None = None
        self.drafts_read: tuple[int, ...] = ()

    @property
    def is_open(self) -> bool:
        """Whether the next rows are worth naming: no drafts are to be read, and a second row for each request is free.

        Where the prediction decides the number of picks, a block may be complete, so the next block's row goes along.
        """
        return not self._drafts.drafts_next() and (self.pace.is_fixed or self._drafts.planner.rows_are_free())

    @property
    def num_refined(self) -> int:
        """The most forwards of MRP that follow before the backbone's next one."""
        last = self.unsettled or self.next
        return 0 if last is None else last.num_refined

    @property
    def num_rows(self) -> int:
        return 0 if self.next is None else 1 + len(self._numbers(self.next)) + self.next.perhaps_complete

    def _numbers(self, following: NextRow) -> list[int]:
        """The numbers of the drafts that are read with the next row: those that may have a masked position."""
        if not following.has_drafts:
            return []
        steps = (following.masked - 1) // (self.pace.picks or 1)
        return [number for number in self._drafts.device_numbers() if number.bit_count() <= steps]

    def rows(self, row: Row) -> list[Row]:
        """The rows of the backbone's next forward. `row`: the request's, without a state."""
        following = self.next
        if following is None:
            return []
        index, writes_kv = following.index, following.perhaps_complete
        state, is_begun = unknown_state(self._size, following.masked), following.anchor is not None
        row = replace(
            self.revealing(row), state=state, index=index, writes_kv=writes_kv, drafts=False, on_device=is_begun
        )
        numbers = self._numbers(following)
        rows = [replace(row, num_drafts=len(numbers))]
        for number in numbers:
            state = unknown_state(self._size, following.masked - number.bit_count() * (self.pace.picks or 1))
            draft = replace(row, state=state, writes_kv=False, rule=None, drafts_follow=False, draft=number)
            rows.append(replace(draft, kind="verify"))
        if writes_kv and index + 1 < self._num_pages:
            state = unknown_state(self._size, self._size)
            rows.append(replace(row, state=state, index=index + 1, writes_kv=False, on_device=False))
        return rows

    def revealing(self, row: Row) -> Row:
        """The row of a state after which the device reveals the rule's picks, and perhaps drafts."""
        return replace(row, rule=self._rule, drafts_follow=bool(self._drafts.device_numbers()))

    def refined_rows(self, row: Row) -> list[Row]:
        """The rows of MRP's next forward: of the block, and of the next one if the block may be complete."""
        if not self.num_refined:
            return []
        if self.unsettled is not None:
            rows, anchors, _ = self.unsettled
            counts = [self._max_masked(row, row.state.tokens.count(MASKED)) for row in rows]
            return [self._refined(*refined) for refined in zip(rows, counts, anchors, strict=True)]
        following = cast(NextRow, self.next)
        return [self._refined(replace(row, index=following.index), following.masked, following.anchor)]

    def _refined(self, row: Row, masked: int, anchor: Anchor | None) -> Row:
        state = unknown_state(self._size, masked)
        return replace(row, state=state, kind="mrp", anchor=anchor, drafts=False, on_device=True, rule=self._gate)

    def begin(self, rows: Sequence[Row], anchors: Sequence[Anchor]) -> None:
        """A forward over these rows of states has begun. None: it reads a first position, or drafts."""
        num_refined, self.next = self.num_refined - 1, None
        if not rows:
            return
        row = rows[0]
        read_before, self.drafts_read = self.drafts_read, tuple([row.draft for row in rows if row.draft])
        if row.anchor is None:
            num_refined = self.pace.mrp_steps
        if row.writes_kv or (row.on_device and (read_before or self.drafts_read)):
            self.unsettled = Unsettled(rows, anchors, num_refined)
            if row.writes_kv:
                self._blocks.expect(row.index)
        elif row.rule is not None:
            self._name_next(row, anchors[0], row.state.tokens.count(MASKED), num_refined)

    def settle(self, index: int, block: Block) -> None:
        """The host knows the state `block` now, in which the first unsettled row began, or that it was complete.

        `index`: the index of the block that is decoded.
        """
        if self.unsettled is None:
            return
        (rows, anchors, num_refined), self.unsettled = self.unsettled, None
        row, last = rows[0], rows[-1]
        complete = index > row.index
        if row.writes_kv:
            self._blocks.settle(row, anchors[0], complete=complete)
        if num_refined:  # MRP waits for the results
            return
        if self.drafts_read and any(anchor.output is not anchors[0].output for anchor in anchors):
            return  # for want of memory they are in several forwards, so the device has not verified the drafts
        if not complete:
            self._name_next(row, anchors[0], block.tokens.count(MASKED), 0, self.drafts_read)
        elif last.index > row.index:
            self._name_next(last, anchors[-1], self._size, 0)

    def _name_next(self, row: Row, anchor: Anchor, masked: int, num_refined: int, drafts: Sequence[int] = ()) -> None:
        """Names the row after one that has begun. `masked`: the masked positions of its state, at most.

        `drafts`: the numbers of its drafts, which may be passed.
        """
        if left := self._max_masked(row, masked):
            picks, gate = self.pace.picks, self.pace.gate
            steps = 1 + max([number.bit_count() for number in drafts], default=0)
            perhaps = picks is None or masked <= steps * picks or (gate is not None and row.anchor is not None)
            self.next = NextRow(row.index, left, anchor, min(num_refined, left), perhaps, row.drafts_follow)
        elif row.index + 1 < self._num_pages:
            self._blocks.add_ahead(row)
            self.next = NextRow(row.index + 1, self._size, None)

    def _max_masked(self, row: Row, masked: int) -> int:
        """The masked positions that the forward over a row leaves, at most."""
        if row.anchor is not None and self.pace.gate is not None:
            return masked
        return max(0, masked - min(self.pace.picks or 1, self._model.max_read(masked)))
