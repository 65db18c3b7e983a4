"""The positions of a forward whose tokens are wanted, as arrays: a step has thousands of them.

What is asked of them stands with their rows. Nothing here loops over positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from service.decode.block import MASKED
from service.engine.forward.rows import Row
from service.engine.request import LogprobsRequest, SamplingParams

Integers = NDArray[np.int64]
_T = TypeVar("_T")

#: lower temperatures sample like this one: their logits would not be finite
_COLDEST = 1e-6
#: a lower top_p would be 0 in float32, which leaves no token at all
_LEAST_TOP_P = float(np.finfo(np.float32).tiny)
#: a larger top_k is no other one for any vocabulary
_MOST_TOP_K = 2**31
#: of rows that are not read
_GREEDY = SamplingParams()


class Questions:
    """What the rows of a forward ask of their positions, an array `[R]` each. `length`: of a block."""

    def __init__(self, rows: Sequence[Row], length: int) -> None:
        self.rows, self.length = rows, length
        self._sampling = [row.sampling or _GREEDY for row in rows]

    @cached_property
    def sampled(self) -> NDArray[np.bool_]:
        """Whether noise decides."""
        return np.array([one.temperature > 0 for one in self._sampling])

    @cached_property
    def filtered(self) -> NDArray[np.bool_]:
        """Whether top-k or top-p leave tokens out of what noise decides on."""
        return np.array([one.filtered and one.temperature > 0 for one in self._sampling])

    @cached_property
    def temperature(self) -> NDArray[np.float32]:
        """What logits are divided by: 1 where nothing is sampled."""
        values = [max(one.temperature, _COLDEST) if one.temperature else 1.0 for one in self._sampling]
        return np.array(values, np.float32)

    @cached_property
    def top_k(self) -> Integers:
        """0: all."""
        return np.array([min(one.top_k, _MOST_TOP_K) for one in self._sampling], np.int64)

    @cached_property
    def top_p(self) -> NDArray[np.float32]:
        """Infinite: all."""
        values = [max(one.top_p, _LEAST_TOP_P) if one.top_p < 1 else np.inf for one in self._sampling]
        return np.array(values, np.float32)

    @cached_property
    def seed(self) -> Integers:
        """Of the noise."""
        return np.array([one.seed for one in self._sampling], np.int64)

    @cached_property
    def start(self) -> Integers:
        """The absolute position of the block."""
        return np.array([row.index for row in self.rows], np.int64) * self.length

    @cached_property
    def revealed(self) -> Integers:
        """The number of tokens that the block has."""
        return np.array([row.state.num_revealed for row in self.rows], np.int64)

    @cached_property
    def entropy(self) -> bool:
        """Whether any row wants entropies."""
        return any(row.entropy for row in self.rows)

    @cached_property
    def masks(self) -> dict[int, NDArray[np.uint8]]:
        """The tokens allowed at the leftmost masked position, by row."""
        return {number: row.mask for number, row in enumerate(self.rows) if row.mask is not None}

    @cached_property
    def asked(self) -> dict[int, LogprobsRequest]:
        """What is wanted of masked positions besides, by row."""
        return {number: row.asked for number, row in enumerate(self.rows) if row.asked is not None}


@dataclass(frozen=True, slots=True, eq=False)
class Reads:
    """Positions that are read, an array `[M]` each.

    `row`: the row's number in the forward. `place`: the position in the block. `token`: -1 to choose one, or the token
    whose probability is asked for.
    """

    questions: Questions
    row: Integers
    place: Integers
    token: Integers

    @classmethod
    def of(cls, rows: Sequence[Row], length: int) -> Reads:
        """The masked positions of the rows that are read, in their order; behind all of these the judged ones."""
        reading = [number for number, row in enumerate(rows) if row.sampling is not None]
        tokens = np.array([rows[number].state.tokens for number in reading], np.int64).reshape(-1, length)
        row, place = np.nonzero(tokens == MASKED)
        token = np.full(len(row), -1)
        judged = [(at, position) for at, number in enumerate(reading) for position in rows[number].judge]
        if judged:
            others = np.array(judged)
            row, place = np.concatenate([row, others[:, 0]]), np.concatenate([place, others[:, 1]])
            token = np.concatenate([token, tokens[others[:, 0], others[:, 1]]])
        return cls(Questions(rows, length), np.array(reading, np.int64)[row], place, token)

    def __len__(self) -> int:
        return len(self.row)

    def take(self, numbers: Integers) -> Reads:
        """Those of these numbers."""
        return replace(self, row=self.row[numbers], place=self.place[numbers], token=self.token[numbers])

    @property
    def slot(self) -> Integers:
        """row * block + place."""
        return self.row * self.questions.length + self.place

    @property
    def position(self) -> Integers:
        """In the sequence."""
        return self.questions.start[self.row] + self.place

    @property
    def chosen(self) -> NDArray[np.bool_]:
        """Whether a token is to be chosen."""
        return self.token < 0

    @property
    def sampled(self) -> NDArray[np.bool_]:
        """Whether noise decides."""
        return self.questions.sampled[self.row]

    @property
    def temperature(self) -> NDArray[np.float32]:
        """What logits are divided by."""
        return self.questions.temperature[self.row]

    def having(self, asked: dict[int, _T]) -> list[tuple[int, _T]]:
        """The numbers of reads that choose a token, with what their rows, which are asked something, are asked."""
        if not asked:
            return []
        numbers = np.flatnonzero(np.isin(self.row, list(asked)) & self.chosen)
        return [(number, asked[row]) for number, row in zip(numbers.tolist(), self.row[numbers].tolist(), strict=True)]

    def leftmost(self) -> NDArray[np.bool_]:
        """Whether a read is of the leftmost masked position of its row."""
        first = np.array([row.state.num_leading for row in self.questions.rows])
        leftmost: NDArray[np.bool_] = self.place == first[self.row]
        return leftmost
