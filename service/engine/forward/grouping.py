"""Which rows share a forward: all of them, or groups of one shape, so that a row's numbers depend on the row alone.

How a matrix product, an attention or a sum rounds depends on the shape it is given: on how many rows share the forward,
on how long the longest prefix among them is, on how many positions are read. `Together` takes what comes and is fast.
`SameShapes` gives every row the same shapes whoever is beside it, and is what `deterministic` means. Knows rows and
reads by their sizes; no tensors, no sequences. Called by the runner.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor

from service.engine.forward.rows import Row
from service.engine.forward.sampling import Read

_T = TypeVar("_T")

#: Tokens of every forward in `SameShapes`, and reads: what a lone request pays for against what many share. Rows are
#: nearly free on a GPU until the card is full; on a CPU each costs.
_TOKENS = {"cpu": 16}
_TOKENS_ELSEWHERE = 128


@dataclass(frozen=True, slots=True)
class Group(Generic[_T]):
    """Rows or reads that are computed together.

    `members[i]` is number `places[i]` of those that were given; members behind the last place only fill up.
    `width`: how many pages each row reads, masked where it is fewer; None: as many as the longest needs.
    """

    members: Sequence[_T]
    places: Sequence[int]
    width: int | None = None


class Grouping(Protocol):
    """Divides the rows of a step and their reads.

    `min_rows`: rows that a forward has at least. `same_shapes`: whether a row's numbers depend on the row alone.
    """

    min_rows: int
    same_shapes: bool

    def rows(self, rows: Sequence[Row]) -> list[Group[Row]]:
        """Groups to be computed one after another; a row stands behind those whose pages it reads."""

    def reads(self, reads: Sequence[Read]) -> list[Group[Read]]:
        """Groups in any order."""


class Together:
    """All rows in one forward; reads as many at once as logits may exist."""

    min_rows = 1
    same_shapes = False

    def __init__(self, max_reads: int, max_sampled: int) -> None:
        self._max_reads, self._max_sampled = max_reads, max_sampled

    def rows(self, rows: Sequence[Row]) -> list[Group[Row]]:
        """One group."""
        return [Group(rows, range(len(rows)))]

    def reads(self, reads: Sequence[Read]) -> list[Group[Read]]:
        """In order, cut where the logits would be too many; fewer fit where one of them needs copies of its own."""
        size, count = self._max_reads, len(reads)
        if any(read.sampling.temperature or read.asked for read in reads):
            size = min(size, self._max_sampled)
        return [Group(reads[at : at + size], range(at, min(at + size, count))) for at in range(0, count, size)]


class SameShapes:
    """Groups of exactly `num_rows` rows that read the same power of two of pages, and of exactly `num_reads` reads.

    Sorted by block index, a row stands behind all rows whose pages it can read. Reads are grouped by how they are
    sampled, too, because filters and noise are computed for those that have them alone.
    """

    same_shapes = True

    def __init__(self, num_rows: int, num_reads: int) -> None:
        self.min_rows, self._num_reads = num_rows, num_reads

    def rows(self, rows: Sequence[Row]) -> list[Group[Row]]:
        """Filled up with copies of a row that write nothing and are not read."""
        return [
            Group(_fill(chunk, self.min_rows, _idle), places, width)
            for width, chunk, places in _chunks(rows, self.min_rows, lambda row: row.index, _width)
        ]

    def reads(self, reads: Sequence[Read]) -> list[Group[Read]]:
        """Filled up with copies of a read."""
        return [
            Group(_fill(chunk, self._num_reads, lambda read: read), places)
            for _, chunk, places in _chunks(reads, self._num_reads, _sampling, _sampling)
        ]


def same_shapes_for(device: str, block_size: int) -> SameShapes:
    """The shapes for a kind of device ("cpu", "cuda"). Part of an answer's identity: others round differently."""
    tokens = _TOKENS.get(device, _TOKENS_ELSEWHERE)
    return SameShapes(max(1, tokens // block_size), tokens)


def join(parts: Sequence[Tensor]) -> Tensor:
    """What the groups' computations gave, one behind the other."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


def in_places(groups: Sequence[Group[_T]]) -> list[int]:
    """The places of all groups in the order in which they are computed."""
    return [place for group in groups for place in group.places]


def _width(row: Row) -> int:
    """The pages a row reads, its own included, up to the next power of two."""
    return 1 << row.index.bit_length()


def _idle(row: Row) -> Row:
    return row._replace(keeps=False, sampling=None, judge=())


def _sampling(read: Read) -> int:
    """0 greedy, 1 sampled, 2 sampled and filtered."""
    sampling = read.sampling
    if not sampling.temperature:
        return 0
    return 2 if sampling.filtered else 1


def _fill(chunk: list[_T], size: int, copy: Callable[[_T], _T]) -> list[_T]:
    return chunk + [copy(chunk[-1])] * (size - len(chunk))


def _chunks(
    items: Sequence[_T], size: int, order: Callable[[_T], int], kind: Callable[[_T], int]
) -> Iterator[tuple[int, list[_T], list[int]]]:
    """Kind, items and places: sorted by `order`, items of one kind together, at most `size` at a time."""
    places = sorted(range(len(items)), key=lambda place: order(items[place]))
    for value, alike in groupby(places, key=lambda place: kind(items[place])):
        rest = list(alike)
        for start in range(0, len(rest), size):
            chunk = rest[start : start + size]
            yield value, [items[place] for place in chunk], chunk
