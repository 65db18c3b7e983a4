"""Which rows read their prefix together: rows of one sequence share a read, sequences of similar length a call.

A unit is some rows of one sequence that follow each other in a forward. It reads the pages before its first row
once; what lies between that and a row is in the forward itself. A batch is units of as many rows, computed by one
call: each of them reads as many pages as the longest. Knows numbers only, no tensors.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from service.model.attention.interface import RowKv


@dataclass(frozen=True, slots=True)
class Unit:
    """Rows `first` to `first + num_rows - 1` of a forward. They read the first `base` of `pages`."""

    first: int
    num_rows: int
    base: int
    pages: Sequence[int]


@dataclass(frozen=True, slots=True)
class Limits:
    """`rows`: of a unit at most. `waste`: pages that a batch may read in vain, which a further call would cost."""

    rows: int
    waste: int


def batches(places: Sequence[RowKv], limits: Limits) -> list[list[Unit]]:
    """All rows in units, in batches; units of a batch have as many rows and either all a prefix or none."""
    by_shape = defaultdict[tuple[int, bool], list[Unit]](list)
    for alike in _by_rows(units(places, limits.rows)):
        for unit in alike if _pays(alike, places, limits) else _singles(alike, places):
            by_shape[unit.num_rows, unit.base > 0].append(unit)
    return [batch for alike in by_shape.values() for batch in _similar(alike, limits)]


def units(places: Sequence[RowKv], most_rows: int) -> list[Unit]:
    """The longest units there are. A row joins if all blocks before it are in the unit or lie before it."""
    found: list[Unit] = []
    first, kept = 0, 0
    for number, place in enumerate(places):
        head = places[first]
        follows = place.pages is head.pages and head.index <= place.index <= head.index + kept
        if number and not (follows and number - first < most_rows):
            found.append(Unit(first, number - first, head.index, head.pages))
            first, kept = number, 0
        kept += place.keeps and place.index == places[first].index + kept
    if places:
        found.append(Unit(first, len(places) - first, places[first].index, places[first].pages))
    return found


def singles(places: Sequence[RowKv]) -> list[Unit]:
    """Every row for itself."""
    return [Unit(number, 1, place.index, place.pages) for number, place in enumerate(places)]


def _by_rows(found: Sequence[Unit]) -> list[list[Unit]]:
    alike = defaultdict[int, list[Unit]](list)
    for unit in found:
        alike[unit.num_rows].append(unit)
    return list(alike.values())


def _pays(alike: Sequence[Unit], places: Sequence[RowKv], limits: Limits) -> bool:
    """Whether the reads that units of one size save are worth a call of their own."""
    if alike[0].num_rows == 1:
        return True
    saved = 0
    for unit in alike:
        read = sum(places[number].index for number in range(unit.first, unit.first + unit.num_rows))
        saved += read - unit.base
    return saved > limits.waste


def _singles(alike: Sequence[Unit], places: Sequence[RowKv]) -> list[Unit]:
    numbers = (number for unit in alike for number in range(unit.first, unit.first + unit.num_rows))
    return [Unit(number, 1, places[number].index, places[number].pages) for number in numbers]


def _similar(alike: Sequence[Unit], limits: Limits) -> list[list[Unit]]:
    """Batches by descending length, cut where waiting for the longest would waste more than a call."""
    found: list[list[Unit]] = []
    waste = 0
    for unit in sorted(alike, key=lambda unit: -unit.base):
        waste += (found[-1][0].base - unit.base) * unit.num_rows if found else 0
        if not found or waste > limits.waste:
            found.append([])
            waste = 0
        found[-1].append(unit)
    return found
