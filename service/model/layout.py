"""Which published weights make which parameter. Families say it, `weights.py` obeys. Needs no torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Cut(NamedTuple):
    """How the ranks of a divided model (`shard.py`) share a published matrix: each has a piece of dimension `dim`.

    `keys`: they are heads of keys or values, of which several ranks may hold the same.
    """

    dim: int
    keys: bool = False


#: pieces of the rows or the columns of a matrix
ROWS, COLUMNS = Cut(0), Cut(1)
#: Matrices behind each other in one published weight: what a rank has of each in the dimension, and how it is cut. All
#: are cut in the same dimension.
Cuts = tuple[tuple[int, Cut], ...]


class Part(NamedTuple):
    """A published weight by its name, and the part of a parameter that it is.

    `place`: an index; () is the whole. `cut`: None for a weight that every rank has whole. `exact`: kept at least in
    fp32, whatever the type of the other weights.
    """

    name: str
    place: tuple[int | slice, ...] = ()
    cut: Cut | Cuts | None = None
    exact: bool = False


#: The published weights that make a parameter; together they cover it.
Layout = Sequence[Part]


def stacked(parts: Iterable[tuple[str, int, Cut]], behind: tuple[int | slice, ...] = ()) -> list[Part]:
    """Matrices below each other: name, height and cut. `behind`: the index of the matrix that they make."""
    layout, start = list[Part](), 0
    for name, height, cut in parts:
        layout.append(Part(name, (*behind, slice(start, start + height)), cut))
        start += height
    return layout


def prefixed(prefix: str, layout: Layout) -> list[Part]:
    """The same parts under longer names."""
    return [part._replace(name=prefix + part.name) for part in layout]
