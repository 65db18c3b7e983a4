"""Groups the rows of a forward by the prefix that they share: rows of one sequence read its pages once.

A unit is consecutive rows of one sequence. It reads the pages before its first row once; the keys between these pages
and a row are rows of the forward themselves. A batch is units with equal numbers of rows, computed by one call: all
units are padded to the longest one. Knows numbers only, no tensors.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Protocol

from msgspec import Struct


class RowKv(Protocol):
    """Where a row reads and writes keys and values.

    `pages`: the pages of its sequence; rows of one sequence have the same list (the same object, not an equal one).
    The row reads the first `index` pages. If it `writes_kv`, it writes its block's keys and values to page `index`.
    """

    @property
    def pages(self) -> Sequence[int]: ...

    @property
    def index(self) -> int: ...

    @property
    def writes_kv(self) -> bool: ...


class PrefixUnit(Struct, frozen=True, gc=False):
    """Rows `first` to `first + num_rows - 1` of a forward. They read the first `base` of `pages`."""

    first: int
    num_rows: int
    base: int
    pages: Sequence[int]

    @property
    def rows(self) -> range:
        return range(self.first, self.first + self.num_rows)


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """`rows`: the most rows of a unit. `padding`: the pages of padding with the price of one more call."""

    rows: int
    padding: int


def batches(rows: Sequence[RowKv], limits: BatchLimits) -> list[list[PrefixUnit]]:
    """All rows in units, in batches. In a batch either all units have a prefix or none."""
    by_size: defaultdict[int, list[PrefixUnit]] = defaultdict(list)
    for unit in prefix_units(rows, limits.rows):
        by_size[unit.num_rows].append(unit)
    by_shape: defaultdict[tuple[int, bool], list[PrefixUnit]] = defaultdict(list)
    for size, same_size in by_size.items():
        units = same_size
        if size > 1 and _saved_pages(rows, same_size) <= limits.padding:  # not worth a call of their own
            units = [_single(rows, index) for unit in same_size for index in unit.rows]
        for unit in units:
            by_shape[unit.num_rows, unit.base > 0].append(unit)
    return [batch for same_shape in by_shape.values() for batch in _by_length(same_shape, limits)]


def prefix_units(rows: Sequence[RowKv], max_rows: int) -> list[PrefixUnit]:
    """The longest possible units. A row joins if all blocks before it are in the unit or lie before the unit."""
    units: list[PrefixUnit] = []
    first, final, base = 0, 0, 0
    pages: Sequence[int] = ()
    for number, row in enumerate(rows):
        index = row.index
        if row.pages is not pages or not base <= index <= base + final or number - first >= max_rows:
            if number:
                units.append(PrefixUnit(first, number - first, base, pages))
            first, final, base, pages = number, 0, index, row.pages
        if row.writes_kv and index == base + final:
            final += 1
    if rows:
        units.append(PrefixUnit(first, len(rows) - first, base, pages))
    return units


def single_units(rows: Sequence[RowKv]) -> list[PrefixUnit]:
    """A unit for every row."""
    return [_single(rows, index) for index in range(len(rows))]


def _single(rows: Sequence[RowKv], index: int) -> PrefixUnit:
    return PrefixUnit(index, 1, rows[index].index, rows[index].pages)


def _saved_pages(rows: Sequence[RowKv], units: Sequence[PrefixUnit]) -> int:
    return sum(sum(rows[index].index for index in unit.rows) - unit.base for unit in units)


def _by_length(units: Sequence[PrefixUnit], limits: BatchLimits) -> list[list[PrefixUnit]]:
    """Batches by descending length. A new one begins where padding to the longest would cost more than a call."""
    ordered, size = sorted(units, key=attrgetter("base"), reverse=True), units[0].num_rows
    if (ordered[0].base - ordered[-1].base) * size * len(ordered) <= limits.padding:
        return [ordered]
    similar: list[list[PrefixUnit]] = []
    padding = 0
    for unit in ordered:
        padding += (similar[-1][0].base - unit.base) * size if similar else 0
        if not similar or padding > limits.padding:
            similar.append([])
            padding = 0
        similar[-1].append(unit)
    return similar
