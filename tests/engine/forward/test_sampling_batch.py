"""The reads of a forward as arrays, and the anchors that later forwards go on from."""

import numpy as np
import torch
from msgspec.structs import replace

from service.decode.block import MASKED, Block
from service.engine import SamplingParams
from service.engine.forward.logits_sampler import noise_keys
from service.engine.forward.rows import Anchor, AnchorRows, ForwardOutput, LogitAdjustment, Row
from service.engine.forward.sampling_batch import SamplingBatch
from service.model.transfer import PackedTables

M = MASKED


def row(tokens: tuple[int, ...], index: int = 0, *, seed: int = 0, rescore: tuple[int, ...] = ()) -> Row:
    return Row(Block(tokens), index, (), writes_kv=False, sampling=SamplingParams(0.7, seed=seed), rescore=rescore)


def entries(reads: SamplingBatch) -> list[tuple[int, int, int]]:
    return list(zip(reads.row.tolist(), reads.position.tolist(), reads.token.tolist(), strict=True))


def test_masked_positions_come_in_order_and_judged_ones_behind_all_of_them() -> None:
    stored = Row(Block((1, 2, 3)), 0, (), writes_kv=True)
    reads = SamplingBatch.from_rows([row((7, M, 8), rescore=(2, 0)), stored, row((M, 9, M), 4, rescore=(1,))], 3)
    assert entries(reads) == [(0, 1, -1), (2, 0, -1), (2, 2, -1), (0, 2, 8), (0, 0, 7), (2, 1, 9)]
    assert reads.flat.tolist() == [1, 6, 8, 2, 0, 7]
    assert (reads.metadata.start[reads.row] + reads.position).tolist() == [1, 12, 14, 2, 0, 13]
    assert reads.leftmost().tolist() == [True, True, False, False, False, False]
    assert entries(reads.select(np.array([4, 1]))) == [(0, 0, 7), (2, 0, -1)]


def test_positions_that_are_edited_are_read_as_masked_ones_are() -> None:
    edited = replace(row((7, M, 8, 9), rescore=(3, 2)), edits=True)
    reads = SamplingBatch.from_rows([row((M, 9, M, 1), rescore=(1,)), edited, row((1, 2, 3, M))], 4)
    assert entries(reads) == [(0, 0, -1), (0, 2, -1), (1, 1, -1), (1, 2, -1), (1, 3, -1), (2, 3, -1), (0, 1, 9)]
    change = LogitAdjustment(*[np.zeros(0, np.float32)] * 4, {})
    adjusted = SamplingBatch.from_rows([row((M,) * 4), replace(edited, adjustments=(change,) * 3)], 4)
    assert adjusted.adjustment_indices().tolist() == [-1, -1, -1, -1, 0, 2, 1]


def test_noise_differs_by_seed_position_and_progress() -> None:
    rows = [row((5,) * revealed + (M,) * (16 - revealed), index, seed=seed)
            for seed in range(8) for index in range(8) for revealed in range(16)]  # fmt: skip
    keys = noise_keys(SamplingBatch.from_rows(rows, 16))
    assert len({(int(first), int(second)) for first, second in keys}) == len(keys) == 8 * 8 * sum(range(1, 17))
    assert keys.min() >= 0
    assert keys.max() < 2**32


def test_anchors_of_one_forward_and_of_several_are_gathered_alike() -> None:
    first, second = ForwardOutput(torch.randn(4, 3, 2)), ForwardOutput(torch.randn(5, 3, 2))
    for anchors in ([Anchor(first, 2), Anchor(first, 0), Anchor(first, 2)], [Anchor(second, 4), Anchor(first, 1)]):
        wanted = torch.stack([anchor.hidden for anchor in anchors])
        tables = PackedTables(torch.device("cpu"))
        rows, buffer = AnchorRows(anchors, tables), torch.zeros(len(anchors), 3, 2)
        tables.send()
        assert torch.equal(rows.hidden(), wanted)
        assert torch.equal(rows.hidden(buffer), wanted)
        assert torch.equal(buffer, wanted)
