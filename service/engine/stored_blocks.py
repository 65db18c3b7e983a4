"""The finished blocks of one request on their way to its pages, and to the prefix cache.

A block is finished, then a row stores its KV (`unwritten`), then MRP reads it (`for_mrp`, where the request uses MRP),
then it may be shared (`written`). Forwards are computed in the order of their beginning. So a block is stored once its
forward has begun, and a row ahead of results may store a block whose tokens only the device knows.
"""

from collections import deque
from collections.abc import Sequence
from functools import lru_cache

from msgspec.structs import replace

from service.decode.block import MASKED, Block
from service.engine.forward.rows import Anchor, Row
from service.engine.prefix_cache import BlockTokens, Lease


class StoredBlocks:
    """The blocks of one request. `written`: those to be shared, in their order, since the last publication."""

    __slots__ = (
        "_finished", "_lease", "_next", "_num_stored", "_uses_mrp", "for_mrp", "has_failed", "unwritten", "written",
    )  # fmt: skip

    def __init__(self, lease: Lease, *, uses_mrp: bool) -> None:
        self._lease, self._uses_mrp = lease, uses_mrp
        self.unwritten: deque[Row] = deque()
        self.for_mrp: list[Row] = []
        self.written: deque[BlockTokens] = deque()
        self.has_failed = False  # whether a row had no memory. Then the request fails when the forward is read.
        self._next = lease.num_shared  # the index of the block whose row comes to `unwritten` next
        self._num_stored = 0  # blocks that are stored and not in `written`, perhaps since their tokens are not known
        self._finished: deque[BlockTokens] = deque()  # blocks whose tokens are known and that are not in `written`

    def add(self, block: Block, index: int) -> None:
        """A block is finished, and its tokens are known. Perhaps a row ahead already stores it."""
        self._finished.append(block.tokens)
        if index == self._next:
            self.unwritten.append(Row(block, index, self._lease.pages, writes_kv=True))
            self._next += 1
        self._share()

    def add_ahead(self, index: int, after: Anchor | None, block_size: int) -> None:
        """A block is finished by the row `after`. The device knows its tokens."""
        state = unknown_state(block_size, 0)
        self.unwritten.append(Row(state, index, self._lease.pages, writes_kv=True, after=after))
        self._next = index + 1

    def skip(self, count: int) -> None:
        """The next blocks need no rows: another request has stored them."""
        for _ in range(count):
            self.unwritten.popleft()
            self._finished.popleft()

    def begin(self, rows: Sequence[Row], anchors: Sequence[Anchor | None]) -> int:
        """A forward over rows has begun. Returns the number of its first rows that store a block."""
        if None in anchors:
            self.has_failed = True
        is_mrp, stored = rows[0].anchor is not None, 0
        if not is_mrp and not rows[0].writes_kv:  # the usual case
            return 0
        for row, anchor in zip(rows, anchors, strict=True):
            in_turn = row.sampling is None if is_mrp else self.unwritten and row.index == self.unwritten[0].index
            if not row.writes_kv or not in_turn:  # a row whose block may be complete, if any, is the next one
                break
            stored += 1
            if not is_mrp:
                block = self.unwritten.popleft()
                if self._uses_mrp:
                    self.for_mrp.append(replace(block, anchor=anchor))
        if is_mrp:
            self.for_mrp.clear()
        if is_mrp or not self._uses_mrp:
            self._num_stored += stored
            self._share()
        return stored

    def expect(self, index: int) -> None:
        """A row has begun that stores the block if its state turns out to be complete."""
        self._next = index + 1

    def settle(self, row: Row, anchor: Anchor | None, *, complete: bool) -> None:
        """Whether the state of that row was complete is known now. `row`: the last one, of MRP or of the backbone."""
        if not complete:
            self._next = row.index
        elif self._uses_mrp and row.anchor is None:
            state = unknown_state(len(row.state.tokens), 0)
            self.for_mrp.append(replace(row, state=state, sampling=None, rule=None, anchor=anchor))
        else:
            self._num_stored += 1
            self._share()

    def confirm(self, row: Row) -> bool:
        """Whether a row with drafts, which has written its page, has stored the block that was finished next."""
        if not self.unwritten or (self.unwritten[0].index, self.unwritten[0].state) != (row.index, row.state):
            return False
        self.unwritten.popleft()
        self._num_stored += 1
        self._share()
        return True

    def clear(self) -> None:
        self._finished.clear()
        self.written.clear()

    def _share(self) -> None:
        while self._num_stored and self._finished and not self.has_failed:
            self.written.append(self._finished.popleft())
            self._num_stored -= 1


@lru_cache
def unknown_state(block_size: int, masked: int) -> Block:
    """A state that only the device knows: only its number of masked positions is right, at least."""
    return Block((0,) * (block_size - masked) + (MASKED,) * masked)
