"""The life of a block, from its end to the prefix cache: the drawing in `stored_blocks.py`, line by line."""

import torch

from service.decode.block import MASKED, Block
from service.engine.forward.rows import Anchor, ForwardOutput, Row
from service.engine.prefix_cache import Lease
from service.engine.stored_blocks import StoredBlocks

TOKENS = [(7, 8), (9, 10), (11, 12)]
ANCHOR = Anchor(ForwardOutput(torch.zeros(1, 2, 4)), 0)


def stored_blocks(*, uses_mrp: bool = False) -> StoredBlocks:
    return StoredBlocks(Lease([3, 4, 5]), uses_mrp=uses_mrp)


def begin(blocks: StoredBlocks, rows: list[Row]) -> int:
    return blocks.begin(rows, [ANCHOR] * len(rows))


def row(index: int, *, writes_kv: bool = False) -> Row:
    """A row of masks, whose state is perhaps complete if it writes its page."""
    return Row(Block((MASKED, MASKED)), index, [3, 4, 5], writes_kv, on_device=writes_kv, first_line=1)


def test_a_finished_block_may_be_shared_once_its_row_has_begun() -> None:
    blocks = stored_blocks()
    blocks.add(Block(TOKENS[0]), 0)
    assert [(row.index, row.kind) for row in blocks.unwritten] == [(0, "commit")]
    assert not blocks.written
    assert begin(blocks, [*blocks.unwritten, row(1)]) == 1
    assert (list(blocks.unwritten), list(blocks.written)) == ([], [TOKENS[0]])


def test_with_mrp_it_may_be_shared_once_mrp_has_read_it() -> None:
    blocks = stored_blocks(uses_mrp=True)
    blocks.add(Block(TOKENS[0]), 0, kind="prefill")
    begin(blocks, [*blocks.unwritten])
    assert [(row.index, row.kind, row.anchor) for row in blocks.for_mrp] == [(0, "mrp", ANCHOR)]
    assert not blocks.written
    assert begin(blocks, [*blocks.for_mrp]) == 1
    assert (blocks.for_mrp, list(blocks.written)) == ([], [TOKENS[0]])


def test_a_block_that_the_device_has_finished_waits_for_its_tokens() -> None:
    blocks = stored_blocks()
    blocks.add_ahead(row(0))
    assert [(row.index, row.on_device, row.line) for row in blocks.unwritten] == [(0, True, 1)]
    begin(blocks, [*blocks.unwritten])
    assert not blocks.written
    blocks.add(Block(TOKENS[0]), 0)
    assert (list(blocks.unwritten), list(blocks.written)) == ([], [TOKENS[0]])


def test_a_block_that_turns_out_to_be_complete_has_been_stored_by_that_row() -> None:
    blocks, perhaps = stored_blocks(), row(0, writes_kv=True)
    assert begin(blocks, [perhaps, row(1)]) == 0
    blocks.expect(0)
    blocks.add(Block(TOKENS[0]), 0)
    assert not blocks.unwritten
    assert not blocks.written
    blocks.settle(perhaps, ANCHOR, complete=True)
    assert list(blocks.written) == [TOKENS[0]]


def test_mrp_reads_such_a_block_by_its_tokens() -> None:
    """Its line of the state table is soon another block's."""
    blocks, perhaps = stored_blocks(uses_mrp=True), row(0, writes_kv=True)
    begin(blocks, [perhaps])
    blocks.expect(0)
    blocks.add(Block(TOKENS[0]), 0)
    blocks.settle(perhaps, ANCHOR, complete=True)
    assert [(row.state.tokens, row.line, row.kind) for row in blocks.for_mrp] == [(TOKENS[0], 0, "mrp")]
    assert not blocks.written


def test_a_block_that_turns_out_to_have_masks_is_stored_later() -> None:
    blocks, perhaps = stored_blocks(), row(0, writes_kv=True)
    begin(blocks, [perhaps])
    blocks.expect(0)
    blocks.settle(perhaps, ANCHOR, complete=False)
    blocks.add(Block(TOKENS[0]), 0)
    assert [row.index for row in blocks.unwritten] == [0]
    assert not blocks.written


def test_blocks_are_shared_in_their_order() -> None:
    blocks = stored_blocks()
    for index, tokens in enumerate(TOKENS):
        blocks.add(Block(tokens), index)
    begin(blocks, [*blocks.unwritten][:2])
    assert list(blocks.written) == TOKENS[:2]
    begin(blocks, [*blocks.unwritten])
    assert list(blocks.written) == TOKENS
