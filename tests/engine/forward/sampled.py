"""Sampled positions to test with, each of a row of its own."""

from typing import NamedTuple

import numpy as np
import torch
from msgspec.structs import replace
from torch import Tensor

from service.decode.block import MASKED, Block
from service.engine import SamplingParams
from service.engine.forward.logits_sampler import LogitsSampler
from service.engine.forward.rows import Row
from service.engine.forward.sampling_batch import SamplingBatch, SamplingMetadata
from service.model.transfer import PackedTables

GREEDY = SamplingParams()


class Position(NamedTuple):
    """A position behind `revealed` tokens of its block. `token`: the token that is rescored.

    `unsampled`: as of `Row`.
    """

    sampling: SamplingParams = GREEDY
    position: int = 0
    revealed: int = 0
    token: int | None = None
    unsampled: tuple[int, ...] = ()


def batch_of(*positions: Position) -> SamplingBatch:
    """A batch of these positions, with entropies. Rescored ones need not stand behind the others here."""
    rows = []
    for sampled in positions:
        state = Block((5,) * sampled.revealed + (MASKED,))
        row = Row(state, sampled.position, (), writes_kv=False, sampling=sampled.sampling, entropy=True)
        rows.append(replace(row, unsampled=sampled.unsampled))
    tokens = np.array([-1 if sampled.token is None else sampled.token for sampled in positions])
    indices = np.arange(len(rows))
    return SamplingBatch(SamplingMetadata(rows, 1), indices, np.zeros_like(indices), tokens)


def sample_by(sampler: LogitsSampler, logits: Tensor, batch: SamplingBatch) -> tuple[Tensor, Tensor | None]:
    tables = PackedTables(logits.device)
    sample, _ = sampler.plan(batch, tables)
    tables.send()
    table, total = sample(logits)
    return readable(table), total


def readable(table: Tensor) -> Tensor:
    """A sampler's table `[M, 4]` in float64, with tokens as numbers."""
    return torch.cat([table[:, :1].contiguous().view(torch.int32).double(), table[:, 1:].double()], 1)
