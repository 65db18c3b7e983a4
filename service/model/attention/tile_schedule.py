"""The tile schedule of the Triton backend: which queries read which keys, as tables of integers.

The rows of a unit (`shared_prefix.py`) are cut into tiles of queries. A tile reads the pages before its unit and the
unit's own keys up to the tile's end. A long prefix is split among several programs (split-KV), so that a single row
keeps more than one multiprocessor busy. Knows numbers only, no tensors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from service.model.attention.interface import RowKv
from service.model.attention.shared_prefix import PrefixUnit, prefix_units, single_units

IntTable = NDArray[np.int32]

#: The most rows of a unit: no limit, since a unit's keys are read tile by tile.
_NO_LIMIT = 1 << 30
#: The fewest prefix tokens that one program reads; and the exact number in `deterministic`.
MIN_SPLIT, FIXED_SPLIT = 256, 1024


class AttendItem(NamedTuple):
    """The work of one program. Tokens are numbered through the forward.

    Queries: `tokens` tokens from `first` on. Keys: the tokens `start` to `stop` of the prefix, whose pages are listed
    from `table` on, and the forward's tokens `own_start` to `own_stop`. `part`: the index of the partial result that
    the program writes; -1: it writes the whole result.
    """

    first: int
    tokens: int
    table: int
    start: int
    stop: int
    own_start: int
    own_stop: int
    part: int


class MergeItem(NamedTuple):
    """Merges `num_parts` partial results from `part` on into the result of `tokens` tokens from `first` on."""

    first: int
    tokens: int
    part: int
    num_parts: int


@dataclass(frozen=True, slots=True)
class TileConfig:
    """The fixed sizes of a backend's schedules.

    `block`: tokens of a row. `group`: query heads that share a key head. `tile`: the most queries of a program, over
    all heads. `programs`: the number of programs, for one head, that keeps the device busy.
    """

    block: int
    group: int
    tile: int
    programs: int

    @property
    def smallest_tile(self) -> int:
        """Queries of a program if every row is a unit."""
        return self.tile_for(self.block)

    def tile_for(self, tokens: int) -> int:
        """Queries of a program, a power of two. `tokens`: the tokens of the largest unit."""
        needed = 1 << (tokens * self.group - 1).bit_length()
        return max(16, min(self.tile, needed), 1 << (self.group - 1).bit_length())


@dataclass(frozen=True, slots=True)
class TileSchedule:
    """The tables of a forward: `items` `[programs, 8]`, `merges` `[tiles, 4]`, `pages`, and three tables of the rows.

    `tile`: queries of a program, over all heads. `order`: the order of the rows, which stays. `num_parts`: the number
    of partial results. Of each row: `indices`, its block index; `final`, 1 for a final block; `targets`, the page that
    it writes, or -1.
    """

    order: Sequence[int]
    tile: int
    items: IntTable
    merges: IntTable
    num_parts: int
    indices: IntTable
    final: IntTable
    targets: IntTable
    pages: IntTable

    @property
    def shape(self) -> ScheduleShape:
        """The exact sizes of its tables."""
        return ScheduleShape(self.tile, len(self.items), len(self.merges), self.num_parts, len(self.indices))


@dataclass(frozen=True, slots=True)
class ScheduleShape:
    """The sizes of a schedule's tables, and the queries of a program. Forwards of one shape share a graph."""

    tile: int
    items: int
    merges: int
    parts: int
    rows: int

    def fits(self, other: ScheduleShape) -> bool:
        """Whether tables of this shape fit into tables of another one."""
        sizes = zip(astuple(self)[1:], astuple(other)[1:], strict=True)
        return self.tile == other.tile and all(size <= space for size, space in sizes)

    @classmethod
    def sufficient(cls, rows: int, tile: int, width: int | None, config: TileConfig) -> ScheduleShape:
        """A shape for any forward of `rows` rows with tiles of this size. `width`: see `AttentionBackend.prepare`."""
        tokens = max(1, tile // config.group)
        tiles = rows * -(-config.block // tokens)
        if width is None:  # a split prefix is split among `programs`
            return cls(tile, tiles + config.programs, config.programs, 2 * config.programs, rows)
        items = tiles * -(-width * config.block // FIXED_SPLIT)
        return cls(tile, items, tiles, items, rows)


class PageTables:
    """Page lists as arrays, cached by the list's identity from one forward to the next."""

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
        if entry is None or entry[0] is not pages or entry[1] != pages:
            copy = list(pages)
            entry = (pages, copy, np.array(copy, dtype=np.int32))
        return entry


def schedule_tiles(
    rows: Sequence[RowKv], config: TileConfig, tables: PageTables, width: int | None = None, padding: int = 0
) -> TileSchedule:
    """The schedule of a forward over rows, then `padding` rows, which see themselves and write nothing.

    With a `width` a row's tiles depend on the row alone: it is a unit of its own, split at fixed tokens.
    """
    units = single_units(rows) if width is not None else prefix_units(rows, _NO_LIMIT)
    longest = max((unit.num_rows for unit in units), default=1)
    tile = config.smallest_tile if width is not None else config.tile_for(longest * config.block)
    if padding:
        units.append(PrefixUnit(len(rows), padding, 0, ()))
    starts, pages = tables.concatenated(units)
    tiles = [
        (unit, table, *span) for unit, table in zip(units, starts, strict=True) for span in _tiles(unit, tile, config)
    ]
    lengths = [unit.base * config.block for unit, *_ in tiles]
    split = FIXED_SPLIT if width is not None else _split(lengths, config.programs)
    items, merges = list[AttendItem](), list[MergeItem]()
    num_parts = 0
    for unit, table, first, stop in tiles:
        spans = list(_spans(unit.base * config.block, split))
        own_keys = unit.first * config.block, -(-stop // config.block) * config.block
        for index, (start, end) in enumerate(spans):
            own_span = own_keys if index == len(spans) - 1 else (0, 0)
            part = num_parts + index if len(spans) > 1 else -1
            items.append(AttendItem(first, stop - first, table, start, end, *own_span, part))
        if len(spans) > 1:
            merges.append(MergeItem(first, stop - first, num_parts, len(spans)))
            num_parts += len(spans)
    targets = [row.pages[row.index] if row.writes_kv else -1 for row in rows]
    return TileSchedule(
        range(len(rows)),
        tile,
        np.array(items, dtype=np.int32).reshape(-1, 8),
        np.array(merges, dtype=np.int32).reshape(-1, 4),
        num_parts,
        np.array([row.index for row in rows] + [0] * padding, dtype=np.int32),
        np.array([row.writes_kv for row in rows] + [0] * padding, dtype=np.int32),
        np.array(targets + [-1] * padding, dtype=np.int32),
        pages,
    )


def _tiles(unit: PrefixUnit, tile: int, config: TileConfig) -> Iterator[tuple[int, int]]:
    """The first and the end token of each tile. A tile that is larger than a row has whole rows."""
    tokens = max(1, tile // config.group)
    tokens = tokens // config.block * config.block or tokens
    end = (unit.first + unit.num_rows) * config.block
    for first in range(unit.first * config.block, end, tokens):
        yield first, min(first + tokens, end)


def _split(lengths: Sequence[int], programs: int) -> int:
    """The prefix tokens of one program, so that `programs` programs share all reads."""
    fair = -(-sum(lengths) // max(1, programs))
    return max(MIN_SPLIT, -(-fair // MIN_SPLIT) * MIN_SPLIT)


def _spans(length: int, split: int) -> Iterator[tuple[int, int]]:
    """The parts of a prefix. A short prefix is one part, which may be empty."""
    for start in range(0, max(length, 1), split):
        yield start, min(start + split, length)
