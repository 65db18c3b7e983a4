"""The finished blocks of one request on their way to its pages, and to the prefix cache.

The life of a block. Forwards are computed in the order of their beginning, so a block is stored once its forward has
begun.

    finished        the policy has finished it: `add`
                    ahead: the device has, and the host does not know its tokens yet: `add_ahead`
    `unwritten`     its row is in no forward yet
    stored          its row's forward has begun: `begin`
                    ahead: a row has begun that stores it if its state is complete: `expect`, and `settle` once known
                    in a causal model: a row with drafts, which wrote its page, turned out to have its tokens: `confirm`
    `for_mrp`       it is stored, and MRP, which reads it in a forward of its own (`begin`), has not. Only with MRP
    `written`       it may be shared: it is stored, MRP has read it, and its tokens are known

A request that has lost its pages begins anew with all of them (`restore`): those that the tree does not have are stored
again, as a prompt is.
"""

from collections import deque
from collections.abc import Sequence
from functools import lru_cache

from msgspec.structs import replace

from service.decode.block import MASKED, Block
from service.engine.forward.rows import Anchor, Row
from service.engine.prefix_cache import BlockTokens, Lease


class StoredBlocks:
    """The blocks of one request.

    `history`: all whose tokens are known, from the prompt's first one on. `num_prefill`: the leading ones that are
    stored as a prompt is. `written`: those to be shared, in their order, since the last publication.
    """

    __slots__ = (
        "_finished", "_lease", "_next", "_num_stored", "_uses_mrp", "for_mrp", "history", "num_prefill", "unwritten",
        "written",
    )  # fmt: skip

    def __init__(self, lease: Lease, *, uses_mrp: bool) -> None:
        self._lease, self._uses_mrp = lease, uses_mrp
        self.history = list(lease.prefix.blocks)
        self.unwritten: deque[Row] = deque()
        self.restore()

    def restore(self) -> int:
        """The lease has other pages. The blocks that the tree does not have get a row each.

        -> the number of those that were stored before.
        """
        start, pages = self._lease.num_shared, self._lease.pages
        stored = self.unwritten[0].index if self.unwritten else len(self.history)
        blocks = self.history[start:]
        self.unwritten = deque(
            Row(Block(tokens), index, pages, writes_kv=True, kind="prefill")
            for index, tokens in enumerate(blocks, start)
        )
        self.for_mrp: list[Row] = []
        self.written: deque[BlockTokens] = deque()
        #: the index of the block whose row comes to `unwritten` next
        self._next = self.num_prefill = len(self.history)
        self._num_stored = 0  # blocks that are stored and not in `written`, perhaps since their tokens are not known
        self._finished = deque(blocks)  # blocks whose tokens are known and that are not in `written`
        return max(0, stored - start)

    @property
    def num_pages(self) -> int:
        """The pages that its request may fill."""
        return self._lease.limit

    def add(self, block: Block, index: int) -> None:
        """A block is finished, and its tokens are known. Perhaps a row ahead already stores it."""
        self.history.append(block.tokens)
        self._finished.append(block.tokens)
        if self.for_mrp and self.for_mrp[-1].index == index:  # its line is soon another block's
            self.for_mrp[-1] = replace(self.for_mrp[-1], state=block, on_device=False)
        if index == self._next:
            self._add_row(Row(block, index, self._lease.pages, writes_kv=True, kind="commit"))
        self._share()

    def add_ahead(self, row: Row) -> None:
        """The picks of a row finish its block. The device knows its tokens."""
        state = unknown_state(len(row.state.tokens), 0)
        self._add_row(
            Row(state, row.index, row.pages, writes_kv=True, kind="commit", on_device=True, first_line=row.first_line)
        )

    def _add_row(self, row: Row) -> None:
        self.unwritten.append(row)
        self._next = row.index + 1

    def skip(self, count: int) -> None:
        """The next blocks need no rows: another request has stored them."""
        for _ in range(count):
            self.unwritten.popleft()
            self._finished.popleft()

    def begin(self, rows: Sequence[Row], anchors: Sequence[Anchor]) -> int:
        """A forward over rows has begun. Returns the number of its first rows that store a block."""
        if not rows[0].writes_kv:  # the usual case
            return 0
        if rows[0].kind == "mrp":
            self.for_mrp.clear()
            stored = sum([row.sampling is None for row in rows])
            self._store(stored)
            return stored
        stored = sum([row.kind in {"prefill", "commit"} for row in rows])
        blocks = [self.unwritten.popleft() for _ in range(stored)]
        if self._uses_mrp:
            self.for_mrp += [_for_mrp(block, anchor) for block, anchor in zip(blocks, anchors, strict=False)]
        else:
            self._store(stored)
        return stored

    def expect(self, index: int) -> None:
        """A row has begun that stores the block if its state turns out to be complete."""
        self._next = index + 1

    def settle(self, row: Row, anchor: Anchor, *, complete: bool) -> None:
        """Whether the state of that row was complete is known now. `row`: the last one, of MRP or of the backbone."""
        if not complete:
            self._next = row.index
        elif self._uses_mrp and row.anchor is None:
            final = replace(row, state=Block(self._finished[-1]), on_device=False)  # its line is soon another block's
            self.for_mrp.append(_for_mrp(final, anchor))
        else:
            self._store(1)

    def confirm(self, row: Row) -> bool:
        """Whether a row with drafts, which has written its page, has stored the block that was finished next."""
        if not self.unwritten or (self.unwritten[0].index, self.unwritten[0].state) != (row.index, row.state):
            return False
        self.unwritten.popleft()
        self._store(1)
        return True

    @property
    def mrp_is_due(self) -> bool:
        """Whether MRP reads the blocks now that it has not read, also if nothing else is asked of it.

        Few blocks wait, as each keeps the hidden states of a whole forward.
        """
        return len(self.for_mrp) > 1

    def clear(self) -> None:
        self._finished.clear()
        self.written.clear()

    def _store(self, count: int) -> None:
        self._num_stored += count
        self._share()

    def _share(self) -> None:
        while self._num_stored and self._finished:
            self.written.append(self._finished.popleft())
            self._num_stored -= 1


def _for_mrp(row: Row, anchor: Anchor) -> Row:
    return replace(row, sampling=None, rule=None, drafts_follow=False, num_drafts=0, kind="mrp", anchor=anchor)


@lru_cache
def unknown_state(block_size: int, masked: int) -> Block:
    """A state that only the device knows. It has `masked` masked positions at most; nothing else of it is right."""
    return Block((0,) * (block_size - masked) + (MASKED,) * masked)
