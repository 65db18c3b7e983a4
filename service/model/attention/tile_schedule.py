"""The tile schedule of the Triton backend: which queries read which keys, as tables of integers.

The rows of a unit (`shared_prefix.py`) are cut into tiles of queries. A tile reads the pages before its unit and the
unit's own keys up to the tile's end. A long prefix is split among several programs (split-KV), so that a single row
keeps more than one multiprocessor busy. Knows numbers only, no tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from service.model.attention.shared_prefix import PrefixUnit, RowKv, prefix_units, single_units

IntTable = NDArray[np.int32]

#: The most rows of a unit: no limit, since a unit's keys are read tile by tile.
_NO_LIMIT = 1 << 30
#: The fewest prefix tokens that one program reads; and the exact number in `deterministic`.
MIN_SPLIT, FIXED_SPLIT = 128, 1024
#: The queries of few rows are cut into smaller tiles, so that these are an eighth of the programs.
TILE_SHARE = 8


class AttendItem(NamedTuple):
    """The work of one program. Tokens are numbered through the forward.

    Queries: `tokens` tokens from `first` on. Keys: the tokens `start` to `stop` of the prefix, whose pages are listed
    from `table` on. A tile has `num_parts` parts; this is number `number` of them. The last one also has the unit's own
    keys, from the forward's token `own_start` to the end of the last query's row. Several parts have partial results,
    from `first_part` on.
    """

    first: int
    tokens: int
    table: int
    start: int
    stop: int
    own_start: int
    number: int
    first_part: int
    num_parts: int


@dataclass(frozen=True, slots=True)
class TileConfig:
    """The fixed sizes of a backend's schedules."""

    block: int  # tokens of a row
    group: int  # query heads that share a key head
    tile: int  # the most queries of a program, over all heads
    programs: int  # the number of programs, for one head, that keeps the device busy

    def tile_for(self, tokens: int, total: int | None = None) -> int:
        """Queries of a program, a power of two. `tokens`: the tokens of the largest unit. `total`: those of all units.

        With `total` few queries have small tiles: several programs that read the same prefix are faster than one.
        """
        most = tokens if total is None else min(tokens, -(-TILE_SHARE * total // self.programs))
        needed = 1 << (most * self.group - 1).bit_length()
        return max(16, min(self.tile, needed), 1 << (self.group - 1).bit_length())


@dataclass(frozen=True, slots=True)
class TileSchedule:
    """The tables of a forward."""

    tile: int  # queries of a program, over all heads
    items: IntTable  # [programs, 9], `AttendItem`s
    num_parts: int  # the number of partial results
    indices: IntTable  # [R], the block index of each row
    final: IntTable  # [R], 1 for a final block
    targets: IntTable  # [R], the page that a row writes, or -1
    pages: IntTable

    @property
    def shape(self) -> ScheduleShape:
        return ScheduleShape(self.tile, len(self.items), self.num_parts, len(self.indices))


@dataclass(frozen=True, slots=True)
class ScheduleShape:
    """The sizes of a schedule's tables, and the queries of a program. Forwards of one shape share a graph."""

    tile: int
    items: int
    parts: int
    rows: int

    def fits(self, other: ScheduleShape) -> bool:
        sizes = zip(astuple(self)[1:], astuple(other)[1:], strict=True)
        return self.tile == other.tile and all(size <= space for size, space in sizes)

    @classmethod
    def sufficient(cls, rows: int, tile: int, width: int | None, config: TileConfig) -> ScheduleShape:
        """A shape for any forward of `rows` rows with tiles of this size. `width`: see `AttentionBackend.prepare`."""
        tokens = max(1, tile // config.group)
        tiles = rows * -(-config.block // tokens)
        if not width:  # a split prefix is split among `programs`
            return cls(tile, tiles + config.programs, 2 * config.programs, rows)
        items = tiles * -(-width * config.block // FIXED_SPLIT)
        return cls(tile, items, items, rows)


class PageTables:
    """Page lists as arrays, cached by the list's identity from one forward to the next. Most lists only grow."""

    def __init__(self) -> None:
        self._cached: dict[int, tuple[Sequence[int], list[int], IntTable]] = {}

    def concatenated(self, units: Sequence[PrefixUnit]) -> tuple[list[int], IntTable]:
        """The start of each unit's table, and the concatenated tables."""
        used, starts, tables = {}, [], []
        length = 0
        for unit in units:
            starts.append(length)
            if unit.base:
                entry = used[id(unit.pages)] = self._entry(unit.pages)
                tables.append(entry[2][: unit.base])
                length += unit.base
        self._cached = used
        return starts, np.concatenate(tables) if tables else np.zeros(0, np.int32)

    def _entry(self, pages: Sequence[int]) -> tuple[Sequence[int], list[int], IntTable]:
        entry = self._cached.get(id(pages))
        if entry is not None and entry[0] is pages:
            count = len(entry[1])
            if entry[1] == pages:
                return entry
            if entry[1] == pages[:count]:
                more = np.array(pages[count:], dtype=np.int32)
                return pages, list(pages), np.concatenate((entry[2], more))
        return pages, list(pages), np.array(pages, dtype=np.int32)


def schedule_tiles(
    rows: Sequence[RowKv], config: TileConfig, tables: PageTables, width: int | None = None, padding: int = 0
) -> TileSchedule:
    """The schedule of a forward over rows, then `padding` rows, which see themselves and write nothing.

    With a `width` a row's tiles depend on the row alone: it is a unit of its own, split at fixed tokens.
    """
    units = single_units(rows) if width is not None else prefix_units(rows, _NO_LIMIT)
    tokens = max((unit.num_rows for unit in units), default=1) * config.block
    tile = config.tile_for(tokens, (len(rows) + padding) * config.block if width is None else None)
    if padding:
        units.append(PrefixUnit(len(rows), padding, 0, ()))
    starts, pages = tables.concatenated(units)
    spans = [(unit.first, unit.first + unit.num_rows, unit.base, 0) for unit in units]
    table = np.array(spans, np.int32).reshape(-1, 4).T * config.block
    table[3] = starts
    items, num_parts = _divided(table, tile, config, width)
    indices, final, targets = np.zeros((3, len(rows) + padding), np.int32)
    indices[: len(rows)] = [row.index for row in rows]
    targets[:] = -1
    for number, row in enumerate(rows):
        if row.writes_kv:
            final[number], targets[number] = 1, row.pages[row.index]
    return TileSchedule(
        tile=tile, items=items, num_parts=num_parts, indices=indices, final=final, targets=targets, pages=pages,
    )  # fmt: skip


def _divided(units: IntTable, tile: int, config: TileConfig, width: int | None) -> tuple[IntTable, int]:
    """The `AttendItem`s as a table, and the number of partial results.

    `units` `[4, U]`: the first and the end token of each unit, the tokens of its prefix, and the start of its pages. A
    tile that is larger than a row has whole rows. A short prefix is one part, which may be empty.
    """
    tokens = max(1, tile // config.group)
    tokens = tokens // config.block * config.block or tokens
    unit, number = _numbered(-(-(units[1] - units[0]) // tokens))
    own_start, end, length, table = units[:, unit]
    first = own_start + number * tokens
    stop = np.minimum(first + tokens, end)
    split = FIXED_SPLIT if width is not None else _split(int(length.sum()), config.programs)
    counts = np.maximum(1, -(-length // split))
    parts = np.where(counts > 1, counts, 0)
    ends = parts.cumsum(dtype=np.int32)
    tiles = np.empty((len(first), 9), np.int32)
    tiles[:, :3], tiles[:, 4:6] = np.stack((first, stop - first, table), 1), np.stack((length, own_start), 1)
    tiles[:, 7], tiles[:, 8] = ends - parts, counts
    index, number = _numbered(counts)
    items = tiles[index]
    start = number * split
    items[:, 3], items[:, 4], items[:, 6] = start, np.minimum(start + split, items[:, 4]), number
    return items, int(ends[-1]) if len(ends) else 0


def _numbered(counts: IntTable) -> tuple[IntTable, IntTable]:
    """Each index `i` repeated `counts[i]` times, and the numbers 0 to `counts[i] - 1` beside it."""
    indices = np.arange(len(counts), dtype=np.int32).repeat(counts)
    starts = counts.cumsum(dtype=np.int32) - counts
    numbers: IntTable = np.arange(len(indices), dtype=np.int32) - starts[indices]
    return indices, numbers


def _split(tokens: int, programs: int) -> int:
    """The prefix tokens of one program, so that `programs` programs share all `tokens` reads."""
    fair = -(-tokens // max(1, programs))
    return max(MIN_SPLIT, -(-fair // MIN_SPLIT) * MIN_SPLIT)
