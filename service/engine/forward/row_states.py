"""The state table: the states of blocks that the device knows first. A forward reveals its picks there.

So a forward begins before the host has read the one before it. A request has two lines of the table, by a block's index
modulo 2: the last row that reads a block's line begins before the first row of the second next block. A row with a
`rule` reveals its picks in its line, and a row whose state is `on_device` reads it there. On a CPU, where a forward is
over once it has begun, the rules reveal the picks; on CUDA kernels do (`state_kernels.py`).

Where `drafts_follow`, the device also drafts, and verifies its drafts, with a line for each draft:

    a forward reads    a state and its drafts
    the device reveals the state's picks. If that makes a draft's state, it reveals the draft's picks, and so on
    and drafts         the states after some of the rule's next steps, by the last prediction that it has used
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple, cast

import numpy as np
import torch
from msgspec.structs import replace
from numpy.typing import NDArray
from torch import Tensor

from service.decode.block import MASKED, Block, Pick
from service.decode.drafts import NUM_STEPS
from service.decode.policy import Prediction
from service.decode.rules import DevicePicks, Rule
from service.engine.forward.rows import LINES, Row
from service.engine.forward.sampling_batch import SamplingBatch, SamplingMetadata
from service.model.layer_ops import PagedAttend
from service.model.transfer import PackedTables, SentTable


def lines_of(rows: Sequence[Row]) -> NDArray[np.int32] | None:
    """The lines of rows `[R]`, negative where the state is on the device, 0 without one. None if no row has a line."""
    lines = [-row.line if row.on_device else row.line for row in rows]
    return np.array(lines, np.int32) if any(lines) else None


class StateTable:
    """States by line, `tokens` int32 `[1 + LINES * max_running, L]`, the mask token at masked positions.

    Line 0 is nobody's.
    """

    def __init__(self, max_running: int, length: int, mask_token_id: int, device: torch.device) -> None:
        self.tokens = torch.zeros(1 + LINES * max_running, length, dtype=torch.int32, device=device)
        self._mask = mask_token_id

    def with_states(self, rows: Sequence[Row]) -> Sequence[Row]:
        """The rows with their states, once the forwards before them are over."""
        return [self._with_state(row) for row in rows] if any(row.on_device for row in rows) else rows

    def _with_state(self, row: Row) -> Row:
        if not row.on_device:
            return row
        tokens = self.tokens[row.line].tolist()
        state = Block(tuple(MASKED if token == self._mask else token for token in tokens))
        return replace(row, state=state, on_device=False, writes_kv=row.writes_kv and state.complete)

    def reveal_by_rules(self, rows: Sequence[Row], predictions: Sequence[Prediction]) -> None:
        """Reveals the picks of each row's rule. The host knows the rows' states."""
        for line, state in states_after(rows, predictions).items():
            tokens = [self._mask if token == MASKED else token for token in state.tokens]
            self.tokens[line] = torch.tensor(tokens, dtype=torch.int32)

    def place_states(self, tokens: Tensor, lines: Tensor, pages: PagedAttend) -> None:
        """Copies states on the device to the tokens of a forward, `[R, L]` or longer, and the others to their lines.

        `lines` `[R]`: as of `lines_of`. Of rows whose states turn out not to be complete, `pages` writes none.
        """
        from service.engine.forward import state_kernels

        state_kernels.place_states[len(lines),](
            tokens, self.tokens, lines, *pages.final_rows, self._mask, **_sizes(tokens)
        )

    def plan(self, batch: SamplingBatch, tables: PackedTables) -> PlannedStates | None:
        """Plans a forward whose rows read or keep states here. None if no row does."""
        rows = batch.metadata.rows
        if not any(row.line for row in rows):
            return None
        params = row_params(batch.metadata, [row.rule is not None for row in rows])
        read = np.bincount(batch.row[batch.chosen], minlength=len(rows))
        params[:, 2], params[:, 3] = read.cumsum() - read, read
        return PlannedStates(self.tokens, self._mask, batch, tables.add(params))

    def begin_replay(self, states: Tensor, params: Tensor, positions: Tensor) -> None:
        """The sampler's parameters of all positions of a replay. As of `state_kernels.begin_replay`."""
        from service.engine.forward import state_kernels

        state_kernels.begin_replay[len(states),](states, params, positions, self._mask, **_sizes(states))

    def reveal_replay(self, states: Tensor, drawn: Tensor, params: Tensor, values: Tensor) -> None:
        """Reveals the picks of a replay in the states of its rows `[R, L]`. As of `state_kernels.reveal_picks`."""
        from service.engine.forward import state_kernels

        state_kernels.reveal_picks[len(states),](
            states,
            self.tokens,
            drawn,
            params,
            params,
            values,
            self._mask,
            REPLAY=True,
            **_sizes(states),
        )


def states_after(rows: Sequence[Row], predictions: Sequence[Prediction]) -> dict[int, Block]:
    """The states that a forward leaves in the state table, by line. The host knows the rows' states."""
    after = dict[int, Block]()
    for row, prediction in zip(rows, predictions, strict=True):
        if row.rule is not None and row.line:
            after[row.line] = _revealed(row.rule, row.state, prediction)
    for drafted in drafted_rows(rows):
        index, drafts, following = drafted
        if rows[index].state.complete and following is not None:
            index, drafts = following, range(0)
        row, prediction = rows[index], predictions[index]
        state, rule = after[row.line], cast(Rule, row.rule)
        for draft in drafts:
            if rows[draft].state == state:
                prediction = predictions[draft]
                state = _revealed(rule, state, prediction)
        after[row.line] = state
        steps, last = list[tuple[Pick, ...]](), state
        for _ in range(NUM_STEPS):
            prediction = prediction.restricted_to(last)
            steps.append(rule(prediction) if prediction.positions else ())
            last = last.reveal(steps[-1])
        for number in range(1, 2**NUM_STEPS):
            picks = [pick for step, taken in enumerate(steps) if number >> step & 1 for pick in taken]
            after[replace(row, draft=number).line] = state.reveal(picks)
    return after


def _revealed(rule: Rule, state: Block, prediction: Prediction) -> Block:
    return state.reveal(rule(prediction)) if prediction.positions else state


class DraftedRows(NamedTuple):
    """A row behind which the device drafts. `drafts`: its drafts. `following`: the next block's row.

    All are indices of a forward's rows.
    """

    row: int
    drafts: range
    following: int | None


def drafted_rows(rows: Sequence[Row]) -> list[DraftedRows]:
    """The rows behind which the device drafts.

    Without memory for all rows of a request its drafts may come in a later forward. Then their lines stay as they are.
    """
    indices = {(row.first_line, row.index): index for index, row in enumerate(rows) if row.drafts_follow}
    drafted = list[DraftedRows]()
    for (line, block), index in indices.items():
        if (line, block - 1) in indices:
            continue  # the row before decides whether this one counts
        drafts = range(index + 1, index + 1 + rows[index].num_drafts)
        if drafts.stop <= len(rows) and all(rows[draft].first_line == line for draft in drafts):
            drafted.append(DraftedRows(index, drafts, indices.get((line, block + 1))))
    return drafted


class PlannedStates:
    """The states that a forward's rows read or keep. `params`: the rows' table, `[R, 16]`, as of `row_params`."""

    def __init__(self, states: Tensor, mask_token_id: int, batch: SamplingBatch, params: SentTable) -> None:
        self._states, self._mask, self._batch, self._params = states, mask_token_id, batch, params

    def plan_locate(
        self, batch: SamplingBatch, positions: SentTable | NDArray[np.int64], params: SentTable, tables: PackedTables
    ) -> Callable[[], None] | None:
        """Plans the search for the masked positions of rows whose state only the device knows. None if there are none.

        `batch`: some of the forward's positions. `positions`, `params`: their tables, which the result corrects. For
        draft candidates their slots `[R, L]` come instead of a table: `params` has the positions and their slots.
        """
        unknown, metadata = batch.unknown, batch.metadata
        if not unknown.any():
            return None
        masked = np.array([row.state.tokens for row in metadata.rows]) == MASKED
        before = (masked.cumsum(1) - masked)[batch.row, np.minimum(batch.position, metadata.length - 1)]
        sent = tables.add(np.column_stack([batch.row, np.where(unknown, before, -1)]).astype(np.int32))
        drafts = isinstance(positions, np.ndarray)
        at = tables.add(positions.astype(np.int32)) if isinstance(positions, np.ndarray) else positions

        def locate() -> None:
            from service.engine.forward import state_kernels

            state_kernels.locate_positions[len(batch),](
                self._states, self._params.tensor, sent.tensor, at.tensor, params.tensor, self._mask,
                DRAFTS=drafts, SHIFT=metadata.shift, **_sizes(self._states),
            )  # fmt: skip

        return locate

    def plan_reveal(self, indices: NDArray[np.int64], tables: PackedTables) -> Callable[[Tensor], None]:
        """Plans the reveal of each row's picks. -> a function of the values `[M, 4]`, which are as of `SampleLogits`.

        `indices` `[M]`: the index in the batch of each row of the values.
        """
        order = np.empty(len(self._batch), np.int32)
        order[indices] = np.arange(len(self._batch))
        sent, states, params = tables.add(order), self._states, self._params

        def reveal(values: Tensor) -> None:
            from service.engine.forward import state_kernels

            state_kernels.reveal_picks[len(params.host),](
                states,
                states,
                values,
                sent.tensor,
                params.tensor,
                values,
                self._mask,
                REPLAY=False,
                **_sizes(states),
            )

        return reveal


def row_params(metadata: SamplingMetadata, counts: Sequence[int], *, any_token: bool = False) -> NDArray[np.int32]:
    """The words of rows, int32 `[R, 16]`, as of `state_kernels.reveal_picks`. `counts`: the forwards that reveal.

    `any_token`: whether also `Row.unsampled` may be chosen, as draft candidates may.
    """
    from service.engine.forward.sampling_kernels import NOISY, RESTRICTED

    params = np.zeros((len(counts), 16), np.int32)
    params[:, 1], params[:, 2] = counts, metadata.temperature.view(np.int32)
    params[:, 3] = NOISY * metadata.random
    if not any_token:
        params[:, 3] += RESTRICTED * metadata.restricted
    params[:, 4:6] = metadata.seed.view(np.int32).reshape(-1, 2)
    params[:, 6] = metadata.start
    rules = {row.rule for row in metadata.rows}
    words = [rule_words(row.rule) for row in metadata.rows] if len(rules) > 1 else rule_words(rules.pop())
    params[:, 7:12], params[:, 12:14] = words, np.ones(1).view(np.int32)
    params[:, 14] = [row.line for row in metadata.rows]
    for index, drafts, following in drafted_rows(metadata.rows):
        params[index, 15] = 1 + 2 * len(drafts) + (0 if following is None else 16 * (following - index))
    params[[bool(row.draft) and row.rule is None for row in metadata.rows], 15] = -1
    return params


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
