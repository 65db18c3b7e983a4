"""Mappings of published weights to parameters. Families make them, `weights.py` reads them. Needs no torch."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from torch import Tensor


class WeightSource(Protocol):
    """The weights of a checkpoint, by their published names."""

    @property
    def names(self) -> Collection[str]:
        """The names of all weights."""

    def read(self, name: str) -> Tensor:
        """A weight, on any device and in any dtype."""


class ShardDim(NamedTuple):
    """How tensor-parallel ranks share a published matrix: each has a slice of dimension `dim`."""

    dim: int
    kv_heads: bool = False  # whether the slices are heads of keys or values. Several ranks may hold the same ones
    size: int | None = None  # this rank's size of one of the matrices that a weight fuses; None for a weight of one


#: each rank has a slice of the rows, or of the columns
ROWS, COLUMNS = ShardDim(0), ShardDim(1)


class WeightSlice(NamedTuple):
    """A slice of a parameter, and the published weight that fills it."""

    name: str
    indices: tuple[int | slice, ...] = ()  # of the slice in the parameter; () for the whole
    shards: tuple[ShardDim, ...] = ()  # one for each matrix, along the same dimension; () if every rank has it whole
    exact: bool = False  # the slice is at least in fp32, even if other weights have a narrower type


#: The published weights that make a parameter. Together they cover it.
WeightMapping = Sequence[WeightSlice]


def stacked(matrices: Iterable[tuple[str, int, ShardDim]], index: tuple[int | slice, ...] = ()) -> list[WeightSlice]:
    """Matrices below each other: name, height and shard dimension. `index`: the index of the resulting matrix."""
    slices, start = list[WeightSlice](), 0
    for name, height, shard in matrices:
        slices.append(WeightSlice(name, (*index, slice(start, start + height)), (shard,)))
        start += height
    return slices


def prefixed(prefix: str, mapping: WeightMapping) -> list[WeightSlice]:
    """The same mapping with longer names."""
    return [part._replace(name=prefix + part.name) for part in mapping]
