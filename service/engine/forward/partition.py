"""The partition of a step's rows into forwards: all rows together, or groups of fixed shapes (batch invariance).

Rounding depends on the number of rows of a forward, the longest prefix, the number of sampled positions. `WholeBatch`
is fast. In `deterministic` the numbers of a row do not depend on other rows: `BatchInvariant` has kernels whose sums
have one order at any size, `FixedShapes` gives every row the same shapes in any batch. Called by the runner and the
sampler.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np
import torch
from msgspec import Struct
from msgspec.structs import replace
from torch import Tensor

from service.engine.forward.rows import Row
from service.engine.forward.sampling_batch import Integers, SamplingBatch
from service.engine.memory_plan import MAX_LOGITS, MAX_SAMPLED_LOGITS
from service.model.attention import resolve_backend
from service.model.batch_invariant import make_batch_invariant
from service.model.checkpoint import Checkpoint

#: The fixed size of a forward in `FixedShapes` by the device's kind, in tokens and in sampled positions. A larger size
#: wastes work on a single request, a smaller one splits a batch. On a GPU rows are nearly free until the card is full.
_TOKENS = {"cpu": 16}
_TOKENS_ELSEWHERE = 128


class RowGroup(Struct, frozen=True):
    """Rows that are computed together.

    `indices[i]`: the index of `members[i]` in the step; further members are padding. `width`: the number of pages that
    each row reads, masked where the row has fewer; None: the number that the longest row needs; 0: that number,
    too, but a row is read in parts that depend on the row alone.
    """

    members: Sequence[Row]
    indices: Sequence[int]
    width: int | None = None


class PositionGroup(NamedTuple):
    """Positions that are sampled together. `indices[i]`: the index of `members[i]`; further members are padding."""

    members: SamplingBatch
    indices: Integers


class WholeBatch:
    """All rows in one forward. Positions are divided where their logits would be too many.

    `min_rows`: the minimum of rows of a forward.
    """

    min_rows = 1
    fixed_shapes = False

    def __init__(self, max_positions: int, max_random: int) -> None:
        self._max_positions, self._max_random = max_positions, max_random

    def rows(self, rows: Sequence[Row]) -> list[RowGroup]:
        return [RowGroup(rows, range(len(rows)))]

    def positions(self, batch: SamplingBatch) -> list[PositionGroup]:
        """In order. Fewer positions fit where noise, log-probabilities or adjustments need copies of the logits."""
        size, indices = self._max_positions, np.arange(len(batch))
        if len(batch) > self._max_random and (
            batch.random.any() or batch.adjusted or batch.with_values(batch.metadata.logprobs)
        ):
            size = min(size, self._max_random)
        if len(batch) <= size:
            return [PositionGroup(batch, indices)]
        parts = [indices[start : start + size] for start in range(0, len(batch), size)]
        return [PositionGroup(batch.select(part), part) for part in parts]


class FixedShapes:
    """Groups of `num_rows` rows with the same width, a power of two, and groups of `num_positions` positions.

    Sorted by block index, a row comes after all rows whose pages it can read. Positions are also grouped by how they
    are sampled.
    """

    fixed_shapes = True

    def __init__(self, num_rows: int, num_positions: int) -> None:
        self.min_rows, self._num_positions = num_rows, num_positions

    def rows(self, rows: Sequence[Row]) -> list[RowGroup]:
        """To be computed one after another. Padded with copies of a row that write nothing and are not sampled."""
        groups, order = [], sorted(range(len(rows)), key=lambda i: rows[i].index)
        for width, same_width in groupby(order, key=lambda i: 1 << rows[i].index.bit_length()):
            indices = list(same_width)
            for start in range(0, len(indices), self.min_rows):
                chunk = indices[start : start + self.min_rows]
                members = [rows[i] for i in chunk]
                padding = replace(members[-1], writes_kv=False, sampling=None, rescore=(), opens_next=False)
                groups.append(RowGroup(members + [padding] * (self.min_rows - len(chunk)), chunk, width))
        return groups

    def positions(self, batch: SamplingBatch) -> list[PositionGroup]:
        """Padded with copies of a position. Greedy, random, and random filtered positions are separate groups."""
        kinds = batch.random.astype(np.int64) + batch.metadata.filtered[batch.row]
        groups = []
        for kind in np.unique(kinds):
            alike = np.flatnonzero(kinds == kind)
            for start in range(0, len(alike), self._num_positions):
                indices = alike[start : start + self._num_positions]
                padded = np.pad(indices, (0, self._num_positions - len(indices)), mode="edge")
                groups.append(PositionGroup(batch.select(padded), indices))
        return groups


class BatchInvariant(WholeBatch):
    """As `WholeBatch`, for networks and kernels whose numbers of a row do not depend on the number of rows.

    Positions with filters are computed by torch's operations, so they are groups of fixed shapes.
    """

    def __init__(self, max_positions: int, max_random: int, fixed: FixedShapes) -> None:
        super().__init__(max_positions, max_random)
        self._fixed = fixed

    def rows(self, rows: Sequence[Row]) -> list[RowGroup]:
        return [RowGroup(rows, range(len(rows)), 0)]

    def positions(self, batch: SamplingBatch) -> list[PositionGroup]:
        filtered = batch.metadata.filtered[batch.row]
        groups = list[PositionGroup]()
        for positions, indices in ((super().positions, ~filtered), (self._fixed.positions, filtered)):
            of_kind = np.flatnonzero(indices)
            if len(of_kind):
                groups += [PositionGroup(group, of_kind[at]) for group, at in positions(batch.select(of_kind))]
        return groups


#: divides the rows of a step and their sampled positions
BatchPartition = WholeBatch | FixedShapes | BatchInvariant


def position_limits(vocab_size: int) -> tuple[int, int]:
    """The most positions that are sampled together; and of those with noise or other copies of their logits."""
    return max(1, MAX_LOGITS // vocab_size), max(1, MAX_SAMPLED_LOGITS // vocab_size)


def deterministic_partition(checkpoint: Checkpoint, attention: str) -> FixedShapes | BatchInvariant:
    """The partition for `deterministic`. `attention`: the backend's name. May change the checkpoint's products."""
    fixed = fixed_shapes_for(checkpoint.device.type, checkpoint.config.block_size)
    backend = resolve_backend(attention, checkpoint.device, checkpoint.dtype)
    if backend == "triton" and make_batch_invariant(checkpoint):
        return BatchInvariant(*position_limits(checkpoint.config.vocab_size), fixed)
    return fixed


def fixed_shapes_for(device: str, block_size: int) -> FixedShapes:
    """The shapes for a kind of device ("cpu", "cuda"). Other shapes round differently."""
    tokens = _TOKENS.get(device, _TOKENS_ELSEWHERE)
    return FixedShapes(max(1, tokens // block_size), tokens)


def join(parts: Sequence[Tensor]) -> Tensor:
    """The results of the groups, concatenated."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))
