"""Which published weights make which parameter. Families say it, `weights.py` obeys. Needs no torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Part(NamedTuple):
    """A published weight by its name, and the part of a parameter that it is. `place`: an index; () is the whole."""

    name: str
    place: tuple[int | slice, ...] = ()


#: The published weights that make a parameter; together they cover it.
Layout = Sequence[Part]


def stacked(parts: Iterable[tuple[str, int]], behind: tuple[int, ...] = ()) -> list[Part]:
    """Matrices below each other, as pairs of name and height. `behind`: the index of the matrix that they make."""
    layout, start = list[Part](), 0
    for name, height in parts:
        layout.append(Part(name, (*behind, slice(start, start + height))))
        start += height
    return layout


def prefixed(prefix: str, layout: Layout) -> list[Part]:
    """The same parts under longer names."""
    return [Part(prefix + part.name, part.place) for part in layout]
