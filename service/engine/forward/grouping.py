"""Which rows share a forward: all of them, or groups of one shape, so that a row's numbers depend on the row alone.

How a matrix product, an attention or a sum rounds depends on the shape it is given: on how many rows share the forward,
on how long the longest prefix among them is, on how many positions are read. `Together` takes what comes and is fast.
`SameShapes` gives every row the same shapes whoever is beside it, and is what `deterministic` means. Knows rows and
reads by their sizes; no tensors, no sequences. Called by the runner.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from service.engine.forward.reads import Integers, Reads
from service.engine.forward.rows import Row

#: Tokens of every forward in `SameShapes`, and reads: what a lone request pays for against what many share. Rows are
#: nearly free on a GPU until the card is full; on a CPU each costs.
_TOKENS = {"cpu": 16}
_TOKENS_ELSEWHERE = 128


@dataclass(frozen=True, slots=True)
class Group:
    """Rows that are computed together.

    `members[i]` is number `places[i]` of those that were given; members behind the last place only fill up.
    `width`: how many pages each row reads, masked where it is fewer; None: as many as the longest needs.
    """

    members: Sequence[Row]
    places: Sequence[int]
    width: int | None = None


class ReadGroup(NamedTuple):
    """Reads that are computed together: `members[i]` is number `places[i]`, those behind the last place fill up."""

    members: Reads
    places: Integers


class Grouping(Protocol):
    """Divides the rows of a step and their reads.

    `min_rows`: rows that a forward has at least. `same_shapes`: whether a row's numbers depend on the row alone.
    """

    min_rows: int
    same_shapes: bool

    def rows(self, rows: Sequence[Row]) -> list[Group]:
        """Groups to be computed one after another; a row stands behind those whose pages it reads."""

    def reads(self, reads: Reads) -> list[ReadGroup]:
        """Groups in any order."""


class Together:
    """All rows in one forward; reads as many at once as logits may exist."""

    min_rows = 1
    same_shapes = False

    def __init__(self, max_reads: int, max_sampled: int) -> None:
        self._max_reads, self._max_sampled = max_reads, max_sampled

    def rows(self, rows: Sequence[Row]) -> list[Group]:
        """One group."""
        return [Group(rows, range(len(rows)))]

    def reads(self, reads: Reads) -> list[ReadGroup]:
        """In order, cut where the logits would be too many; fewer fit where one of them needs copies of its own."""
        size, places = self._max_reads, np.arange(len(reads))
        if reads.sampled.any() or reads.having(reads.questions.asked):
            size = min(size, self._max_sampled)
        if len(reads) <= size:
            return [ReadGroup(reads, places)]
        parts = [places[at : at + size] for at in range(0, len(reads), size)]
        return [ReadGroup(reads.take(part), part) for part in parts]


class SameShapes:
    """Groups of exactly `num_rows` rows that read the same power of two of pages, and of exactly `num_reads` reads.

    Sorted by block index, a row stands behind all rows whose pages it can read. Reads are grouped by how they are
    sampled, too, because filters and noise are computed for those that have them alone.
    """

    same_shapes = True

    def __init__(self, num_rows: int, num_reads: int) -> None:
        self.min_rows, self._num_reads = num_rows, num_reads

    def rows(self, rows: Sequence[Row]) -> list[Group]:
        """Filled up with copies of a row that write nothing and are not read."""
        return [
            Group(chunk + [_idle(chunk[-1])] * (self.min_rows - len(chunk)), places, width)
            for width, chunk, places in _chunks(rows, self.min_rows)
        ]

    def reads(self, reads: Reads) -> list[ReadGroup]:
        """Filled up with copies of a read. Greedy ones, sampled ones, sampled and filtered ones are apart."""
        kinds = reads.sampled.astype(np.int64) + reads.questions.filtered[reads.row]
        groups = []
        for kind in np.unique(kinds):
            alike = np.flatnonzero(kinds == kind)
            for start in range(0, len(alike), self._num_reads):
                places = alike[start : start + self._num_reads]
                filled = np.pad(places, (0, self._num_reads - len(places)), mode="edge")
                groups.append(ReadGroup(reads.take(filled), places))
        return groups


def same_shapes_for(device: str, block_size: int) -> SameShapes:
    """The shapes for a kind of device ("cpu", "cuda"). Part of an answer's identity: others round differently."""
    tokens = _TOKENS.get(device, _TOKENS_ELSEWHERE)
    return SameShapes(max(1, tokens // block_size), tokens)


def join(parts: Sequence[Tensor]) -> Tensor:
    """What the groups' computations gave, one behind the other."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


def _width(row: Row) -> int:
    """The pages a row reads, its own included, up to the next power of two."""
    return 1 << row.index.bit_length()


def _idle(row: Row) -> Row:
    return row._replace(writes_kv=False, sampling=None, judge=())


def _chunks(rows: Sequence[Row], size: int) -> Iterator[tuple[int, list[Row], list[int]]]:
    """Width, rows and places: sorted by block index, rows of one width together, at most `size` at a time."""
    places = sorted(range(len(rows)), key=lambda place: rows[place].index)
    for width, alike in groupby(places, key=lambda place: _width(rows[place])):
        rest = list(alike)
        for start in range(0, len(rest), size):
            chunk = rest[start : start + size]
            yield width, [rows[place] for place in chunk], chunk
