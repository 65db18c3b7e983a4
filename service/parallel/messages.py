"""What rank 0 tells the others, and what they answer. Forwards have no answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from service.decode.block import Block
from service.engine.forward.grouping import Group
from service.engine.forward.networks import Shapes, Which
from service.engine.forward.rows import Row
from service.errors import MrpServeError
from service.model import LoadOptions
from service.model.memory import DeviceMemory


@dataclass(frozen=True, slots=True)
class Join:
    """Rank `rank` of `size`: its device, and where the ranks find each other.

    `store`: a file in a folder of its own. `timeout_s`: for one exchange between the ranks. `ordered`: sums are made
    in the order of the ranks. `threads`: torch's, on the CPU.
    """

    rank: int
    size: int
    device: str
    store: str
    timeout_s: float
    ordered: bool
    threads: int


@dataclass(frozen=True, slots=True)
class Load:
    """A part of the checkpoint in a folder. Replaces the one before."""

    path: str
    options: LoadOptions


@dataclass(frozen=True, slots=True)
class Fetch:
    """A part of other weights of the same shape, to be read beside those that are served, while forwards go on."""

    path: str
    options: LoadOptions


@dataclass(frozen=True, slots=True)
class Take:
    """The fetched weights take the place of the served ones."""


@dataclass(frozen=True, slots=True)
class Open:
    """Networks with a cache of their own, of the checkpoint that was loaded. Replaces the ones before."""

    num_pages: int
    shapes: Shapes
    attention: str


class SentRow(NamedTuple):
    """A row without what only readings need. `place`: its index. `table`: the number of its page table."""

    tokens: tuple[int, ...]
    place: int
    writes_kv: bool
    table: int


@dataclass(frozen=True, slots=True)
class Forward:
    """A group of rows for one of the networks. `tables`: the pages that the rows of each sequence read or write.

    Anchors of MRP's rows follow as a tensor.
    """

    which: Which
    rows: Sequence[SentRow]
    tables: Sequence[list[int]]
    width: int | None

    @classmethod
    def of(cls, which: Which, group: Group) -> Forward:
        """What the others need to know of a group."""
        numbers: dict[int, int] = {}
        tables: list[list[int]] = []
        rows = []
        for row in group.members:
            number = numbers.setdefault(id(row.pages), len(tables))
            if number == len(tables):
                tables.append([])
            needed = row.index + row.writes_kv
            if needed > len(tables[number]):
                tables[number] = list(row.pages[:needed])
            rows.append(SentRow(row.state.tokens, row.index, row.writes_kv, number))
        return cls(which, rows, tables, group.width)

    @property
    def group(self) -> Group:
        """The group as a follower has it; rows of one sequence have the same list of pages."""
        rows = [Row(Block(row.tokens), row.place, self.tables[row.table], row.writes_kv) for row in self.rows]
        return Group(rows, range(len(rows)), self.width)


@dataclass(frozen=True, slots=True)
class Ready:
    """The last message is obeyed. `memory`: of the device, if a checkpoint was loaded.

    `problem`: why weights could not be fetched; the rank goes on with those that it has.
    """

    memory: DeviceMemory | None = None
    problem: MrpServeError | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """The last message could not be obeyed, and this rank ends. `error`: one of ours, or what is known of another."""

    error: MrpServeError | str
