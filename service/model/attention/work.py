"""What the kernels of a forward are told: which queries read which keys, as tables of whole numbers.

The rows of a unit (`units.py`) are cut into tiles of queries. A tile reads the pages before its unit and the unit's own
keys up to its end. A tile with much to read is divided among several programs, so that a lone row behind a long prefix
keeps more than one multiprocessor busy. Knows numbers only, no tensors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from service.model.attention.interface import RowKv
from service.model.attention.units import Unit, singles, units

Table = NDArray[np.int32]

#: Rows of a unit at most: any number, since a unit's keys are read tile by tile.
_ANY = 1 << 30
#: Tokens of a prefix that one program reads at least, and in `deterministic` exactly.
LEAST_SPLIT, FIXED_SPLIT = 256, 1024


class Item(NamedTuple):
    """One program's work, tokens numbered through the forward.

    Queries: `tokens` tokens from `first` on. Keys: those of the prefix from `start` to `stop`, whose pages are listed
    from `table` on, and the forward's own from `own_start` to `own_stop`. `part`: where the result goes to be merged,
    -1: it is the whole.
    """

    first: int
    tokens: int
    table: int
    start: int
    stop: int
    own_start: int
    own_stop: int
    part: int


class Merge(NamedTuple):
    """`tokens` tokens from `first` on, whose result lies in `num_parts` parts from `part` on."""

    first: int
    tokens: int
    part: int
    num_parts: int


@dataclass(frozen=True, slots=True)
class Shape:
    """What the tables of a forward depend on besides its rows.

    `block`: tokens of a row. `group`: query heads that share a key head. `tile`: queries of a program, heads counted,
    at most. `programs`: how many, heads not counted, keep the device busy.
    """

    block: int
    group: int
    tile: int
    programs: int

    @property
    def least_tile(self) -> int:
        """Queries of a program where every row is a unit of its own."""
        return self.tile_of(self.block)

    def tile_of(self, tokens: int) -> int:
        """Queries of a program, a power of two, where the largest unit has so many tokens."""
        wanted = 1 << (tokens * self.group - 1).bit_length()
        return max(16, min(self.tile, wanted), 1 << (self.group - 1).bit_length())


@dataclass(frozen=True, slots=True)
class Work:
    """The tables of a forward: `items` `[programs, 8]`, `merges` `[tiles, 4]`, `pages`, and three of each row.

    `tile`: queries of a program, heads counted. `order`: that of the rows, which stays. `num_parts`: of results to be
    merged. `targets`: the page a row writes, or -1.
    """

    order: Sequence[int]
    tile: int
    items: Table
    merges: Table
    num_parts: int
    indices: Table
    keeps: Table
    targets: Table
    pages: Table


@dataclass(frozen=True, slots=True)
class Capacity:
    """The most entries of each table, and the queries of a program. Forwards of one capacity are one shape."""

    tile: int
    items: int
    merges: int
    parts: int
    rows: int

    @classmethod
    def of(cls, work: Work) -> Capacity:
        """Exactly what a forward has."""
        return cls(work.tile, len(work.items), len(work.merges), work.num_parts, len(work.indices))

    def fits(self, other: Capacity) -> bool:
        """Whether tables of this capacity find room in those of another."""
        sizes = zip(astuple(self)[1:], astuple(other)[1:], strict=True)
        return self.tile == other.tile and all(own <= room for own, room in sizes)

    @classmethod
    def enough(cls, rows: int, tile: int, width: int | None, shape: Shape) -> Capacity:
        """Room for any forward over so many rows with such tiles (`width`: see `AttentionBackend.prepare`)."""
        tokens = max(1, tile // shape.group)
        tiles = rows * -(-shape.block // tokens)
        if width is None:  # what is divided is divided among `programs`
            return cls(tile, tiles + shape.programs, shape.programs, 2 * shape.programs, rows)
        items = tiles * -(-width * shape.block // FIXED_SPLIT)
        return cls(tile, items, tiles, items, rows)


class PageTables:
    """Page lists as arrays. One is made anew when its list has changed; what no forward asks for is forgotten."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Sequence[int], list[int], Table]] = {}

    def of(self, found: Sequence[Unit]) -> tuple[list[int], Table]:
        """Where each unit's table begins, and all tables one behind another."""
        used, starts, tables = {}, [], []
        length = 0
        for unit in found:
            starts.append(length)
            if unit.base:
                known = used[id(unit.pages)] = self._table(unit.pages)
                tables.append(known[2][: unit.base])
                length += unit.base
        self._known = used
        return starts, np.concatenate(tables) if tables else np.zeros(0, np.int32)

    def _table(self, pages: Sequence[int]) -> tuple[Sequence[int], list[int], Table]:
        known = self._known.get(id(pages))
        if known is None or known[0] is not pages or known[1] != pages:
            copy = list(pages)
            known = (pages, copy, np.array(copy, dtype=np.int32))
        return known


def work_of(
    places: Sequence[RowKv], shape: Shape, tables: PageTables, width: int | None = None, padding: int = 0
) -> Work:
    """The work of a forward over rows, and of `padding` rows behind them, which see themselves and write nothing.

    With a `width` a row's work depends on the row alone: it is a unit of its own, divided at fixed places.
    """
    found = singles(places) if width is not None else units(places, _ANY)
    tile = shape.least_tile if width is not None else shape.tile_of(_longest(found) * shape.block)
    if padding:
        found.append(Unit(len(places), padding, 0, ()))
    starts, pages = tables.of(found)
    cut = [
        (unit, table, *span) for unit, table in zip(found, starts, strict=True) for span in _tiles(unit, tile, shape)
    ]
    split = FIXED_SPLIT if width is not None else _split([unit.base * shape.block for unit, *_ in cut], shape.programs)
    items, merges = list[Item](), list[Merge]()
    num_parts = 0
    for unit, table, first, stop in cut:
        spans = list(_spans(unit.base * shape.block, split))
        own = unit.first * shape.block, -(-stop // shape.block) * shape.block
        for number, (start, end) in enumerate(spans):
            mine = own if number == len(spans) - 1 else (0, 0)
            part = num_parts + number if len(spans) > 1 else -1
            items.append(Item(first, stop - first, table, start, end, *mine, part))
        if len(spans) > 1:
            merges.append(Merge(first, stop - first, num_parts, len(spans)))
            num_parts += len(spans)
    none = [0] * padding
    return Work(
        range(len(places)),
        tile,
        np.array(items, dtype=np.int32).reshape(-1, 8),
        np.array(merges, dtype=np.int32).reshape(-1, 4),
        num_parts,
        np.array([*(place.index for place in places), *none], dtype=np.int32),
        np.array([*(place.keeps for place in places), *none], dtype=np.int32),
        np.array(
            [*(place.pages[place.index] if place.keeps else -1 for place in places), *(-1 for _ in none)],
            dtype=np.int32,
        ),
        pages,
    )


def _longest(found: Sequence[Unit]) -> int:
    return max((unit.num_rows for unit in found), default=1)


def _tiles(unit: Unit, tile: int, shape: Shape) -> Iterator[tuple[int, int]]:
    """The first token of each tile and the one behind its last; a tile that holds a row has whole rows."""
    tokens = max(1, tile // shape.group)
    tokens = tokens // shape.block * shape.block or tokens
    end = (unit.first + unit.num_rows) * shape.block
    for first in range(unit.first * shape.block, end, tokens):
        yield first, min(first + tokens, end)


def _split(lengths: Sequence[int], programs: int) -> int:
    """Tokens of a prefix that one program reads, so that so many programs share all there is to read."""
    fair = -(-sum(lengths) // max(1, programs))
    return max(LEAST_SPLIT, -(-fair // LEAST_SPLIT) * LEAST_SPLIT)


def _spans(length: int, split: int) -> Iterator[tuple[int, int]]:
    """Parts of a prefix; one, which may be empty, where it is short."""
    for start in range(0, max(length, 1), split):
        yield start, min(start + split, length)
