"""The partition of a step's rows into forwards: all rows together, or groups of fixed shapes (batch invariance).

The rounding of a matrix product, an attention or a sum depends on its shape: the number of rows of the forward, the
longest prefix among them, the number of sampled positions. `WholeBatch` is fast. `FixedShapes` gives every row the same
shapes in any batch, so that its numbers depend on the row alone; `deterministic` means this. Knows rows and sampled
positions by their sizes; no tensors, no requests. Called by the runner and the sampler.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from service.engine.forward.rows import Row
from service.engine.forward.sampling_batch import Integers, SamplingBatch

#: The fixed size of a forward in `FixedShapes`, in tokens and in sampled positions. Larger wastes work on a single
#: request, smaller splits a batch. Rows are nearly free on a GPU until the card is full; on a CPU each costs.
_TOKENS = {"cpu": 16}
_TOKENS_ELSEWHERE = 128


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Rows that are computed together.

    `indices[i]`: the index of `members[i]` in the step. Members behind the last index are padding. `width`: the number
    of pages that each row reads, masked where the row has fewer; None: as many as the longest row needs.
    """

    members: Sequence[Row]
    indices: Sequence[int]
    width: int | None = None


class PositionGroup(NamedTuple):
    """Positions that are sampled together. `indices[i]`: the index of `members[i]`; further members are padding."""

    members: SamplingBatch
    indices: Integers


class BatchPartition(Protocol):
    """Divides the rows of a step and their sampled positions.

    `min_rows`: the least rows of a forward. `fixed_shapes`: whether a row's numbers depend on the row alone.
    """

    min_rows: int
    fixed_shapes: bool

    def rows(self, rows: Sequence[Row]) -> list[RowGroup]:
        """Groups to be computed one after another; a row comes after the rows whose pages it reads."""

    def positions(self, batch: SamplingBatch) -> list[PositionGroup]:
        """Groups in any order."""


class WholeBatch:
    """All rows in one forward, and as many positions at once as logits may exist."""

    min_rows = 1
    fixed_shapes = False

    def __init__(self, max_positions: int, max_random: int) -> None:
        self._max_positions, self._max_random = max_positions, max_random

    def rows(self, rows: Sequence[Row]) -> list[RowGroup]:
        """One group."""
        return [RowGroup(rows, range(len(rows)))]

    def positions(self, batch: SamplingBatch) -> list[PositionGroup]:
        """In order, cut where the logits would be too many. Fewer fit where noise or logprobs need copies of them."""
        size, indices = self._max_positions, np.arange(len(batch))
        if batch.random.any() or batch.with_values(batch.metadata.logprobs):
            size = min(size, self._max_random)
        if len(batch) <= size:
            return [PositionGroup(batch, indices)]
        parts = [indices[start : start + size] for start in range(0, len(batch), size)]
        return [PositionGroup(batch.select(part), part) for part in parts]


class FixedShapes:
    """Groups of exactly `num_rows` rows that read the same power of two of pages, and of exactly `num_positions`.

    Sorted by block index, a row comes after all rows whose pages it can read. Positions are grouped by how they are
    sampled, too, because filters and noise are computed only where they are needed.
    """

    fixed_shapes = True

    def __init__(self, num_rows: int, num_positions: int) -> None:
        self.min_rows, self._num_positions = num_rows, num_positions

    def rows(self, rows: Sequence[Row]) -> list[RowGroup]:
        """Padded with copies of a row that write nothing and are not sampled."""
        return [
            RowGroup(chunk + [_padding(chunk[-1])] * (self.min_rows - len(chunk)), indices, width)
            for width, chunk, indices in _chunks(rows, self.min_rows)
        ]

    def positions(self, batch: SamplingBatch) -> list[PositionGroup]:
        """Padded with copies of a position. Greedy, random, and random filtered ones are apart."""
        kinds = batch.random.astype(np.int64) + batch.metadata.filtered[batch.row]
        groups = []
        for kind in np.unique(kinds):
            alike = np.flatnonzero(kinds == kind)
            for start in range(0, len(alike), self._num_positions):
                indices = alike[start : start + self._num_positions]
                padded = np.pad(indices, (0, self._num_positions - len(indices)), mode="edge")
                groups.append(PositionGroup(batch.select(padded), indices))
        return groups


def fixed_shapes_for(device: str, block_size: int) -> FixedShapes:
    """The shapes for a kind of device ("cpu", "cuda"). Part of an answer's identity: others round differently."""
    tokens = _TOKENS.get(device, _TOKENS_ELSEWHERE)
    return FixedShapes(max(1, tokens // block_size), tokens)


def join(parts: Sequence[Tensor]) -> Tensor:
    """The results of the groups, concatenated."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


def _width(row: Row) -> int:
    """The pages a row reads, its own included, up to the next power of two."""
    return 1 << row.index.bit_length()


def _padding(row: Row) -> Row:
    return row._replace(writes_kv=False, sampling=None, rescore=())


def _chunks(rows: Sequence[Row], size: int) -> Iterator[tuple[int, list[Row], list[int]]]:
    """Width, rows and their indices: sorted by block index, rows of one width together, at most `size` at a time."""
    order = sorted(range(len(rows)), key=lambda index: rows[index].index)
    for width, alike in groupby(order, key=lambda index: _width(rows[index])):
        rest = list(alike)
        for start in range(0, len(rest), size):
            chunk = rest[start : start + size]
            yield width, [rows[index] for index in chunk], chunk
