"""Sampled positions to test with, each of a row of its own."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from torch import Tensor

from service.decode.block import MASKED, Block
from service.engine import SamplingParams
from service.engine.forward.logits_sampler import LogitsSampler
from service.engine.forward.rows import Row
from service.engine.forward.sampling_batch import SamplingBatch, SamplingMetadata
from service.model.transfer import PackedTables

GREEDY = SamplingParams()


class Position(NamedTuple):
    """A position behind `revealed` tokens of its block. `token`: the token that is rescored."""

    sampling: SamplingParams = GREEDY
    position: int = 0
    revealed: int = 0
    token: int | None = None


def batch_of(*positions: Position) -> SamplingBatch:
    """A batch of these positions, with entropies. Rescored ones need not stand behind the others here."""
    rows = []
    for sampled in positions:
        state = Block((5,) * sampled.revealed + (MASKED,))
        rows.append(Row(state, sampled.position, (), writes_kv=False, sampling=sampled.sampling, entropy=True))
    tokens = np.array([-1 if sampled.token is None else sampled.token for sampled in positions])
    indices = np.arange(len(rows))
    return SamplingBatch(SamplingMetadata(rows, 1), indices, np.zeros_like(indices), tokens)


def sample_by(sampler: LogitsSampler, logits: Tensor, batch: SamplingBatch) -> tuple[Tensor, Tensor | None]:
    """Plans, sends the tables, and samples."""
    tables = PackedTables(logits.device)
    sample = sampler.plan(batch, tables)
    tables.send()
    return sample(logits)
