"""The messages of rank 0 to the workers, and their answers. Forwards have no answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch

from service.decode.block import Block
from service.engine.forward.model_forward import Network, ShapePolicy
from service.engine.forward.partition import RowGroup
from service.engine.forward.rows import Row
from service.errors import MrpServeError
from service.ipc.data import Data
from service.ipc.messagepack import Extension, MessagePack
from service.model import LoadOptions
from service.model.device import DeviceMemory

#: changes of a rank's state: `model.weight_update` has those of weights, `ModelForward` the others
Action = Literal["apply_update", "drop_weights", "restore_weights", "release_cache", "restore_cache", "seal"]


class Join(Data, frozen=True, tag=1):
    """The first message to rank `rank` of `size`."""

    rank: int
    size: int
    device: str
    store: str  # a file in a folder of its own, by which the ranks find each other
    timeout_s: float  # the limit of one collective operation
    ordered: bool  # sums are made in the order of the ranks
    threads: int  # of torch, on the CPU


class LoadCheckpoint(Data, frozen=True, tag=2):
    """Loads a part of the checkpoint in a folder. Replaces an earlier checkpoint."""

    path: str
    options: LoadOptions


class LoadShard(Data, frozen=True, tag=3):
    """Loads a part of new weights beside the served ones, during forwards. The fields are `load_update`'s."""

    folders: tuple[str, ...]
    options: LoadOptions
    newest_only: bool


class ChangeState(Data, frozen=True, tag=4):
    """Changes a rank's state, as all other ranks change theirs."""

    action: Action


class OpenNetworks(Data, frozen=True, tag=5):
    """Opens networks with a cache of their own, instead of earlier ones. The fields are `ExecutionConfig`'s."""

    num_pages: int
    shapes: ShapePolicy
    attention: str
    cuda_graphs: bool
    kv_cache_dtype: str


class SentRow(NamedTuple):
    """A row without the fields that only predictions need."""

    tokens: tuple[int, ...]
    block_index: int  # its `Row.index`
    writes_kv: bool
    table: int  # the index of its sequence's table


class ForwardCommand(Data, frozen=True, tag=6):
    """A group of rows for one of the networks. Anchors of MRP's rows follow as a tensor."""

    which: Network
    rows: list[SentRow]
    tables: list[list[int]]  # for each sequence, the pages that its rows read or write
    width: int | None

    @classmethod
    def from_group(cls, which: Network, group: RowGroup) -> ForwardCommand:
        indices: dict[int, int] = {}
        tables: list[list[int]] = []
        rows = []
        for row in group.members:
            table = indices.setdefault(id(row.pages), len(tables))
            if table == len(tables):
                tables.append([])
            needed = row.index + row.writes_kv
            if needed > len(tables[table]):
                tables[table] = list(row.pages[:needed])
            rows.append(SentRow(row.state.tokens, row.index, row.writes_kv, table))
        return cls(which, rows, tables, group.width)

    @property
    def group(self) -> RowGroup:
        """The group as a worker has it; rows of one sequence have the same list of pages."""
        rows: Sequence[Row] = [
            Row(Block(row.tokens), row.block_index, self.tables[row.table], row.writes_kv) for row in self.rows
        ]
        return RowGroup(rows, range(len(rows)), self.width)


class WorkerReady(Data, frozen=True, tag=1):
    """The last message is handled."""

    memory: DeviceMemory | None = None  # of the device, if a checkpoint was loaded
    problem: MrpServeError | None = None  # the error of a failed load or allocation; the rank keeps its state


class WorkerFailed(Data, frozen=True, tag=2):
    """The last message could not be handled, and this rank ends."""

    error: MrpServeError


#: messages to a worker
Command = Join | LoadCheckpoint | LoadShard | ChangeState | OpenNetworks | ForwardCommand


def _dtype(name: Any) -> torch.dtype:
    if not isinstance(dtype := getattr(torch, name), torch.dtype):
        raise TypeError(f"torch.{name} is no dtype")
    return dtype


_DTYPE = Extension(torch.dtype, lambda dtype: str(dtype).removeprefix("torch."), _dtype)

#: the codecs of the two ends, by the messages that come there
AT_WORKER = MessagePack(Command, _DTYPE)
AT_DRIVER = MessagePack(WorkerReady | WorkerFailed, _DTYPE)
