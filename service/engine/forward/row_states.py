"""The states of rows that the device knows first: a forward reveals its picks there, and the next one reads them.

So a forward begins before the host has read the forward before it. A `Row` with a `previous` one reads the
state to which that row led. A row with a `rule` reveals its picks. On a CPU, where a forward is over once it has begun, the rules reveal
the picks; on CUDA kernels do (`state_kernels.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray
from torch import Tensor

from service.decode.block import MASKED, Block
from service.decode.policy import Prediction
from service.decode.rules import DevicePicks, Rule
from service.engine.forward.partition import join
from service.engine.forward.rows import Row
from service.engine.forward.sampling_batch import SamplingBatch
from service.model.layer_ops import PagedAttend
from service.model.transfer import PackedTables, SentTable


def has_states(rows: Sequence[Row]) -> bool:
    """Whether the device keeps the states of a forward's rows."""
    return any(row.previous is not None or row.rule is not None for row in rows)


def known_rows(rows: Sequence[Row], mask_token_id: int) -> Sequence[Row]:
    """The rows with their states, once the forwards before them are over."""
    if all(row.previous is None for row in rows):
        return rows
    return [row if row.previous is None else _with_state(row, mask_token_id) for row in rows]


def _with_state(row: Row, mask_token_id: int) -> Row:
    if row.previous is None or row.previous.output.states is None:
        raise AssertionError("a row is to read the state after a row that revealed nothing")
    tokens = row.previous.output.states[row.previous.row].tolist()
    state = Block(tuple(MASKED if token == mask_token_id else token for token in tokens))
    return replace(row, state=state, previous=None, writes_kv=row.writes_kv and state.complete)


class StateRows:
    """The states of a group's rows. `states` `[R, L]`: all of them, once they are placed."""

    states: Tensor

    def __init__(self, rows: Sequence[Row], tables: PackedTables, mask_token_id: int) -> None:
        self._mask = mask_token_id
        self._parts, starts, size = list[Tensor](), dict[int, int](), 0
        sources = np.full(len(rows), -1, np.int32)
        for index, row in enumerate(rows):
            if row.previous is None:
                continue
            output = row.previous.output
            if output.states is None:
                raise AssertionError("a row is to read the state after a row that revealed nothing")
            if id(output) not in starts:
                self._parts.append(output.states)
                starts[id(output)], size = size, size + len(output.states)
            sources[index] = starts[id(output)] + row.previous.row
        self._sources = tables.add(sources)

    def write(self, tokens: Tensor, pages: PagedAttend) -> None:
        """Places the states that only the device knows in the tokens of a forward, `[R, L]` or longer.

        Of rows whose states turn out not to be complete, `pages` writes none.
        """
        from service.engine.forward import state_kernels

        self.states = tokens.new_empty(len(self._sources.host), tokens.shape[1])
        earlier = self.states if not self._parts else join(self._parts)
        state_kernels.place_states[len(self.states),](
            tokens, self.states, earlier, self._sources.tensor, *pages.final_rows, self._mask, **_sizes(self.states)
        )


def plan_locate(
    batch: SamplingBatch,
    positions: SentTable | NDArray[np.int64],
    params: SentTable,
    mask_token_id: int,
    tables: PackedTables,
) -> Callable[[Tensor], None] | None:
    """Plans the search for the masked positions of rows whose state only the device knows. None if there are none.

    `positions`, `params`: the tables of the positions, which the result corrects, given all states `[R, L]`. For draft
    candidates their slots `[R, L]` come instead of a table: `params` has the positions and their slots.
    """
    unknown, length = batch.unknown, batch.metadata.length
    if not unknown.any():
        return None
    masked = np.array([row.state.tokens for row in batch.metadata.rows]) == MASKED
    before = (masked.cumsum(1) - masked)[batch.row, np.minimum(batch.position, length - 1)]
    table = np.empty((len(batch), 5), np.int32)
    table[:, 0], table[:, 1] = batch.row, np.where(unknown, before, -1)
    table[:, 2:4] = batch.metadata.seed[batch.row].view(np.int32).reshape(-1, 2)
    table[:, 4] = batch.metadata.start[batch.row]
    sent, drafts = tables.add(table), isinstance(positions, np.ndarray)
    at = tables.add(positions.astype(np.int32)) if isinstance(positions, np.ndarray) else positions

    def locate(states: Tensor) -> None:
        from service.engine.forward import state_kernels

        state_kernels.locate_positions[len(batch),](
            states, sent.tensor, at.tensor, params.tensor, mask_token_id,
            DRAFTS=drafts, SHIFT=batch.metadata.shift, **_sizes(states),
        )  # fmt: skip

    return locate


def plan_reveal(
    rows: Sequence[Row], batch: SamplingBatch, indices: NDArray[np.int64], mask_token_id: int, tables: PackedTables
) -> Callable[[Tensor, Tensor], None]:
    """Plans the reveal of each row's picks. -> a function of all states `[R, L]`, changed in place, and the values.

    `indices` `[M]`: the index in the batch of each row of the values `[M, 4]`, which are as of `SampleLogits`.
    """
    order = np.empty(len(batch), np.int32)
    order[indices] = np.arange(len(batch))
    counts = np.bincount(batch.row[batch.chosen], minlength=len(rows))
    table = np.empty((len(rows), 6), np.int32)
    table[:, 0] = counts.cumsum() - counts
    rules = {row.rule for row in rows}
    table[:, 1:] = rule_words(rules.pop()) if len(rules) == 1 else np.stack([rule_words(row.rule) for row in rows])
    table[:, 1] += 4 * counts
    sent_order, sent = tables.add(order), tables.add(table)

    def reveal(states: Tensor, values: Tensor) -> None:
        from service.engine.forward import state_kernels

        state_kernels.reveal_picks[len(rows),](
            states, values, sent_order.tensor, sent.tensor, mask_token_id, **_sizes(states)
        )

    return reveal


def reveal_by_rules(states: Tensor, rows: Sequence[Row], predictions: Sequence[Prediction]) -> None:
    """Reveals the picks of each row's rule in the states `[R, L]`, in place."""
    for state, row, prediction in zip(states, rows, predictions, strict=True):
        if row.rule is not None and prediction.positions:
            for pick in row.rule(prediction):
                state[pick.position] = pick.token


@lru_cache
def rule_words(rule: Rule | None) -> NDArray[np.int32]:
    """The words of a rule, as `state_kernels._rule_picks` reads them, `[5]`. None reveals nothing."""
    picks = DevicePicks(min_count=0) if rule is None else rule.device_picks
    if picks is None:
        raise AssertionError(f"the device does not know the rule {rule}")
    threshold = np.float32(picks.threshold)
    if float(threshold) > picks.threshold:  # a confidence is above one of them if it is above the other
        threshold = np.nextafter(threshold, np.float32(-np.inf))
    words = np.array([threshold]).view(np.int32), np.array([picks.bound], np.float64).view(np.int32)
    return np.concatenate([np.array(picks[:2], np.int32), *words])


def _sizes(states: Tensor) -> dict[str, int]:
    length = states.shape[1]
    return {"L": length, "PAD": 1 << (length - 1).bit_length()}
