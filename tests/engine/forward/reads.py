"""Reads to test with, each of a row of its own."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from service.decode.block import MASKED, Block
from service.engine import SamplingParams
from service.engine.forward.reads import Questions, Reads
from service.engine.forward.rows import Row

GREEDY = SamplingParams()


class Read(NamedTuple):
    """A position behind `revealed` tokens of its block. `token`: the one that is judged."""

    sampling: SamplingParams = GREEDY
    position: int = 0
    revealed: int = 0
    token: int | None = None


def reads_of(*asked: Read) -> Reads:
    """Reads of these positions, which want entropies, too. Judged ones need not stand behind the others here."""
    rows = []
    for one in asked:
        state = Block((5,) * one.revealed + (MASKED,))
        rows.append(Row(state, one.position, (), writes_kv=False, sampling=one.sampling, entropy=True))
    tokens = np.array([-1 if one.token is None else one.token for one in asked])
    numbers = np.arange(len(rows))
    return Reads(Questions(rows, 1), numbers, np.zeros_like(numbers), tokens)
