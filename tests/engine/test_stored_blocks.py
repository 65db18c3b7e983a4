"""The life of a block, from its end to the prefix cache: the drawing in `stored_blocks.py`, line by line."""

from collections.abc import Sequence
from itertools import cycle

import pytest
import torch
from msgspec.structs import replace

from service.decode.block import MASKED, Block
from service.decode.modes import Speculative
from service.decode.policy import Prediction
from service.engine import EngineDeps
from service.engine.drafting.planner import PLAIN, REFINED
from service.engine.forward.rows import Anchor, ForwardOutput, Row
from service.engine.prefix_cache import Lease
from service.engine.stored_blocks import StoredBlocks
from tests.engine.helpers import FREE_ROWS, request_of
from tests.plans import use_plan, use_plans
from tests.runners import RunnerWrapper, engine_over
from tests.tiny import tiny_checkpoint

TOKENS = [(7, 8), (9, 10), (11, 12)]
ANCHOR = Anchor(ForwardOutput(torch.zeros(1, 2, 4)), 0)


def stored_blocks(*, uses_mrp: bool = False) -> StoredBlocks:
    return StoredBlocks(Lease([3, 4, 5], limit=3), uses_mrp=uses_mrp)


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
    blocks.add(Block(TOKENS[0]), 0)
    begin(blocks, [*blocks.unwritten])
    assert [(row.index, row.kind, row.anchor) for row in blocks.for_mrp] == [(0, "mrp", ANCHOR)]
    assert not blocks.written
    assert begin(blocks, [*blocks.for_mrp]) == 1
    assert (blocks.for_mrp, list(blocks.written)) == ([], [TOKENS[0]])


def test_mrp_reads_a_block_behind_which_the_device_drafted_and_drafts_nothing() -> None:
    blocks, perhaps = stored_blocks(uses_mrp=True), replace(row(0, writes_kv=True), drafts_follow=True, num_drafts=2)
    begin(blocks, [perhaps, row(1)])
    blocks.expect(0)
    blocks.add(Block(TOKENS[0]), 0)
    blocks.settle(perhaps, ANCHOR, complete=True)
    assert [(read.drafts_follow, read.num_drafts) for read in blocks.for_mrp] == [(False, 0)]


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


def test_a_block_that_waits_for_mrp_has_its_tokens_once_they_are_known() -> None:
    """Its line of the state table is soon another block's."""
    blocks = stored_blocks(uses_mrp=True)
    blocks.add_ahead(row(0, writes_kv=True))
    begin(blocks, [*blocks.unwritten])
    assert [(waiting.index, waiting.on_device) for waiting in blocks.for_mrp] == [(0, True)]
    blocks.add(Block(TOKENS[0]), 0)
    [waiting] = blocks.for_mrp
    assert (waiting.state.tokens, waiting.on_device, waiting.line) == (TOKENS[0], False, 0)


def test_blocks_wait_for_mrp_until_two_of_a_request_do() -> None:
    blocks = stored_blocks(uses_mrp=True)
    for index, tokens in enumerate(TOKENS[:2]):
        assert not blocks.mrp_is_due
        blocks.add(Block(tokens), index)
        begin(blocks, [*blocks.unwritten])
    assert blocks.mrp_is_due


class _Counting(RunnerWrapper):
    num_refined = 0

    def refine(self, rows: Sequence[Row]) -> list[Prediction]:
        self.num_refined += 1
        return super().refine(rows)


def test_while_no_request_asks_mrp_it_reads_the_blocks_of_all_in_few_forwards(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trial of MRP is being prepared: requests start with it, and none drafts. Each has 8 blocks of 4 tokens."""
    plans = cycle((PLAIN, REFINED))  # the one that runs, the one that requests start with
    use_plans(monkeypatch, lambda _: next(plans))
    checkpoint = tiny_checkpoint(1)
    requests = [request_of(str(number), [number + 1], Speculative(), 31 - number) for number in range(4)]
    engine, runner = engine_over(_Counting, checkpoint, EngineDeps(costs=FREE_ROWS), max_running=4)
    done = engine.generate(requests)
    assert [completion.stats.mrp_steps for completion in done] == [2] * 4
    assert 0 < runner.num_refined <= 5
    use_plan(monkeypatch, PLAIN)
    plain, _ = engine_over(_Counting, checkpoint, EngineDeps(costs=FREE_ROWS), max_running=4)
    assert [completion.token_ids for completion in plain.generate(requests)] == [
        completion.token_ids for completion in done
    ]
