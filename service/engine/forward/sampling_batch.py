"""The sampled positions of a forward, and their rows' sampling parameters, as arrays: there are thousands."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from math import log
from operator import attrgetter
from typing import TypeVar

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from service.decode.block import MASKED
from service.engine.forward.rows import Row, state_tokens
from service.engine.request import SamplingParams

Integers = NDArray[np.int64]
_T = TypeVar("_T")

#: the minimum temperature: lower ones sample like it, since their logits would not be finite
_MIN_TEMPERATURE = 1e-6
#: the minimum top_p: a lower one would be 0 in float32, which leaves no token at all
_MIN_TOP_P = float(np.finfo(np.float32).tiny)
#: the largest top_k: it filters nothing in any vocabulary
_MAX_TOP_K = 2**31
#: the parameters of rows that are not sampled
_GREEDY = SamplingParams()


class SamplingMetadata:
    """The sampling parameters of a forward's rows, an array `[R]` each. `length`: the tokens of a block.

    `shift`: the outputs between a position and the one that predicts its token: 1 in models with shifted outputs.
    `causal`: whether the model is causal. Then a block is filled from left to right, so noise depends on the position.
    `random`: whether the temperature is above 0, so that noise decides. `filtered`: whether noise decides among the
    tokens of top-k, top-p or min-p. `ranked`: whether it does among the tokens of top-k or top-p, which need the logits
    in order. `temperature`: the divisor of the logits from which tokens are drawn, 1 for greedy rows.
    `rule_temperature`: the divisor of the logits whose confidences and entropies reveal rules read, 1 or a higher
    temperature. `top_k` 0 and `top_p` infinite: all tokens.
    `min_logit`: the logarithm of min-p where noise decides, -inf: all tokens. `start`: the absolute position of the
    block. `revealed`: its number of revealed tokens. `entropy`: whether any row needs entropies. `masks`, `logprobs`:
    `Row.mask` and `Row.logprobs` by row, where they are not None. `adjustments`: `Row.adjustments` of all rows, in
    order. `first_adjustment`: the index in them of a row's first adjustment, -1 for none; None if no row has any.
    `unsampled`: the tokens of `Row.unsampled`, a model's, the same in every row that has any. `restricted`: whether a
    row has them.
    """

    def __init__(self, rows: Sequence[Row], length: int, shift: int = 0, *, causal: bool = False) -> None:
        self.rows, self.length, self.shift, self.causal = rows, length, shift, causal
        self._sampling = [row.sampling or _GREEDY for row in rows]
        self.entropy = any(map(attrgetter("entropy"), rows))
        special = [
            (index, row)
            for index, row in enumerate(rows)
            if row.mask is not None or row.logprobs is not None or row.adjustments
        ]
        self.masks = {index: row.mask for index, row in special if row.mask is not None}
        self.logprobs = {index: row.logprobs for index, row in special if row.logprobs is not None}
        self.adjustments = [adjustment for _, row in special for adjustment in row.adjustments]

    @cached_property
    def random(self) -> NDArray[np.bool_]:
        return np.array([params.temperature > 0 for params in self._sampling])

    @cached_property
    def filtered(self) -> NDArray[np.bool_]:
        return np.array([params.draws_filtered for params in self._sampling])

    @cached_property
    def ranked(self) -> NDArray[np.bool_]:
        return np.array(
            [(params.top_k > 0 or params.top_p < 1) and params.temperature > 0 for params in self._sampling]
        )

    @cached_property
    def temperature(self) -> NDArray[np.float32]:
        values = [max(params.temperature, _MIN_TEMPERATURE) if params.temperature else 1.0 for params in self._sampling]
        return np.array(values, np.float32)

    @cached_property
    def rule_temperature(self) -> NDArray[np.float32]:
        return np.maximum(self.temperature, np.float32(1))

    @cached_property
    def top_k(self) -> Integers:
        return np.array([min(params.top_k, _MAX_TOP_K) for params in self._sampling], np.int64)

    @cached_property
    def top_p(self) -> NDArray[np.float32]:
        values = [max(params.top_p, _MIN_TOP_P) if params.top_p < 1 else np.inf for params in self._sampling]
        return np.array(values, np.float32)

    @cached_property
    def min_logit(self) -> NDArray[np.float32]:
        values = [log(params.min_p) if params.min_p and params.temperature else -np.inf for params in self._sampling]
        return np.array(values, np.float32)

    @cached_property
    def seed(self) -> Integers:
        return np.array([params.seed for params in self._sampling], np.int64)

    @cached_property
    def start(self) -> Integers:
        return np.array([row.index for row in self.rows], np.int64) * self.length

    @cached_property
    def revealed(self) -> Integers:
        return np.array([row.state.num_revealed for row in self.rows], np.int64)

    @cached_property
    def unsampled(self) -> tuple[int, ...]:
        return max(row.unsampled for row in self.rows)

    @cached_property
    def restricted(self) -> NDArray[np.bool_]:
        return np.array([bool(row.unsampled) for row in self.rows])

    @property
    def first_adjustment(self) -> Integers | None:
        if not self.adjustments:
            return None
        counts = np.array([len(row.adjustments) for row in self.rows], np.int64)
        return np.where(counts > 0, counts.cumsum() - counts, -1)


class SamplingBatch(Struct, frozen=True, eq=False):
    """Sampled positions, an array `[M]` each.

    `row`: the index of the row in the forward. `position`: the position in the block; the block's length is the next
    block's first position. `token`: -1 to choose a token (`chosen`), or the token whose probability is computed.
    """

    metadata: SamplingMetadata
    row: Integers
    position: Integers
    token: Integers

    @classmethod
    def from_rows(
        cls, rows: Sequence[Row], length: int, sub_block: int | None = None, draft_masks: int | None = None
    ) -> SamplingBatch:
        """The positions of the rows whose tokens are chosen, in order, then the positions that are rescored.

        `sub_block`, `draft_masks`: `ModelConfig.sub_block_size` and `ModelConfig.draft_masks`.
        """
        sampled = [index for index, row in enumerate(rows) if row.sampling is not None]
        tokens = state_tokens(rows)
        if len(sampled) < len(rows):
            tokens = tokens[sampled]
        is_chosen = tokens == MASKED
        rescored: list[tuple[int, int]] = []
        is_shifted = sub_block is not None or draft_masks is not None
        if is_shifted:
            opens = [rows[index].opens_next for index in sampled]
            is_chosen = is_chosen & _read_at_once(is_chosen, sub_block, draft_masks)
            is_chosen = np.column_stack([is_chosen, np.array(opens, np.bool_)])
        for i in [i for i, index in enumerate(sampled) if rows[index].rescore]:
            further = rows[sampled[i]]
            if further.edits:
                is_chosen[i, list(further.rescore)] = True
            else:
                rescored += [(i, position) for position in further.rescore]
        row, position = is_chosen.nonzero()
        token = np.full(len(row), -1)
        if rescored:
            rescored_row, rescored_position = np.array(rescored).T
            row, position = np.concatenate([row, rescored_row]), np.concatenate([position, rescored_position])
            token = np.concatenate([token, tokens[rescored_row, rescored_position]])
        metadata = SamplingMetadata(rows, length, int(is_shifted), causal=draft_masks is not None)
        if len(sampled) < len(rows):
            row = np.array(sampled, np.int64)[row]
        return cls(metadata, row, position, token)

    def __len__(self) -> int:
        return len(self.row)

    def select(self, indices: Integers) -> SamplingBatch:
        return replace(self, row=self.row[indices], position=self.position[indices], token=self.token[indices])

    @property
    def flat(self) -> Integers:
        """The index into `[R * L]` of the output that predicts each position's token."""
        return self.row * self.metadata.length + self.position - self.metadata.shift

    @property
    def chosen(self) -> NDArray[np.bool_]:
        return self.token < 0

    @property
    def unknown(self) -> NDArray[np.bool_]:
        """Whether only the device knows where the position lies, and whether it exists: its row's state is."""
        if self.metadata.causal:  # from left to right the number of masks says where they are
            return np.zeros(len(self), np.bool_)
        after: NDArray[np.bool_] = np.array([row.on_device for row in self.metadata.rows])[self.row]
        return after & self.chosen & (self.position < self.metadata.length)  # the next block's first one is known

    @property
    def random(self) -> NDArray[np.bool_]:
        return self.metadata.random[self.row]

    @property
    def temperature(self) -> NDArray[np.float32]:
        return self.metadata.temperature[self.row]

    @property
    def rule_temperature(self) -> NDArray[np.float32]:
        return self.metadata.rule_temperature[self.row]

    def with_values(self, values: dict[int, _T]) -> list[tuple[int, _T]]:
        """(index, value) of every position whose token is to be chosen and whose row has a value in `values`."""
        if not values:
            return []
        indices = np.flatnonzero(np.isin(self.row, list(values)) & self.chosen)
        return [(index, values[row]) for index, row in zip(indices.tolist(), self.row[indices].tolist(), strict=True)]

    @property
    def adjusted(self) -> bool:
        first = self.metadata.first_adjustment
        return first is not None and bool((first[self.row] >= 0).any())

    def adjustment_indices(self) -> Integers:
        """The index of each position's adjustment in `metadata.adjustments`, -1 for none."""
        first = self.metadata.first_adjustment
        if first is None:
            return np.full(len(self), -1)
        indices, rows = first[self.row], self.metadata.rows
        edits = np.array([row.edits for row in rows])[self.row]
        for index in np.flatnonzero((indices >= 0) & (~self.chosen | edits)).tolist():
            rescore, position = rows[self.row[index]].rescore, int(self.position[index])
            if position in rescore:
                indices[index] += 1 + rescore.index(position)
        return indices

    def leftmost(self) -> NDArray[np.bool_]:
        first = np.array([row.state.num_leading for row in self.metadata.rows])
        leftmost: NDArray[np.bool_] = self.position == first[self.row]
        return leftmost


def _read_at_once(masked: NDArray[np.bool_], sub_block: int | None, draft_masks: int | None) -> NDArray[np.bool_]:
    """masked `[S, L]` -> whether a forward may read a position, where outputs are shifted.

    They are those up to the end of the leftmost sub-block that has masks, or up to `draft_masks` behind the leftmost
    mask. The first position is the block before's.
    """
    first = masked.argmax(1)
    ends = (first // sub_block + 1) * sub_block if sub_block is not None else first + 1 + (draft_masks or 0)
    read: NDArray[np.bool_] = np.arange(masked.shape[1]) < ends[:, None]
    read[:, 0] = False
    return read
