"""Applies the adjustments of rows (`engine/logit_adjuster.py`) to the logits of their positions.

Only the listed tokens of each position are read and written, so there is no tensor as wide as the vocabulary.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from service.engine.forward.rows import LogitAdjustment
from service.engine.forward.sampling_batch import Integers, SamplingBatch
from service.model.transfer import PackedTables


def adjust_logits(logits: Tensor, batch: SamplingBatch, mask_token_id: int) -> Tensor:
    """logits `[M, V]` -> adjusted logits: float32 if any of the positions has adjustments, else the same tensor.

    In a lower precision an adjustment would be rounded. `logits` may be overwritten.
    """
    if not batch.adjusted:
        return logits
    logits, of_position = logits.float(), batch.adjustment_indices()
    adjusted = np.flatnonzero(of_position >= 0)
    used, numbers = np.unique(of_position[adjusted], return_inverse=True)
    adjustments = [batch.metadata.adjustments[index] for index in used.tolist()]
    tables = PackedTables(logits.device)
    adjust = _plan_adjust(adjustments, np.stack([adjusted, numbers]), mask_token_id, tables)
    forbidden = [
        (index, token)
        for index, number in zip(adjusted.tolist(), numbers.tolist(), strict=True)
        for token in adjustments[number].forbidden.get(int(batch.position[index]) % batch.metadata.length, ())
        if token < logits.shape[-1]
    ]
    outlawed = tables.add(np.array(forbidden, np.int64).T.copy()) if forbidden else None
    tables.send()
    if adjust is not None:
        adjust(logits)
    if outlawed is not None:
        logits.index_put_(outlawed.tensor.unbind(0), torch.full((), -torch.inf, device=logits.device))
    return logits


def _plan_adjust(
    adjustments: Sequence[LogitAdjustment], positions: Integers, mask_token_id: int, tables: PackedTables
) -> Callable[[Tensor], None] | None:
    """Plans the changes of logits `[M, V]`, in place. None if no logit changes.

    `positions` `[2, A]`: the positions' indices in the logits, and the indices of their adjustments.
    """
    width = max(len(adjustment.tokens) for adjustment in adjustments)
    if not width:
        return None
    # shorter lists end with neutral values for the mask token, which is in no list
    table = np.zeros((4, len(adjustments), width), np.float32)
    tokens = table[0].view(np.int32)
    tokens[:], table[2] = mask_token_id, 1.0
    for number, (listed, bias, divisor, penalty, _) in enumerate(adjustments):
        end = len(listed)
        tokens[number, :end], table[1, number, :end] = listed, bias
        table[2, number, :end], table[3, number, :end] = divisor, penalty
    sent_positions, sent_table = tables.add(positions), tables.add(table)

    def adjust(logits: Tensor) -> None:
        indices, lists = sent_positions.tensor.unbind(0)
        columns, bias_of, divisor_of, penalty_of = sent_table.tensor[:, lists].unbind(0)
        where = indices[:, None], columns.view(torch.int32).long()
        values = logits[where] + bias_of
        values = torch.where(values > 0, values / divisor_of, values * divisor_of) - penalty_of
        logits.index_put_(where, values)

    return adjust
