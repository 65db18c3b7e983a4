"""The draft vocabulary: the few likely tokens of each position, from which MRP's drafts are chosen.

The candidates are the top tokens of the backbone's last prediction of the block. They stay on the device; the host
knows their index by position (`slots`). On CUDA three Triton kernels replace torch's operations
(`candidate_kernels.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from service.engine.forward.logits_sampler import (
    apply_grammar_masks,
    drawing_params,
    noise_keys_of,
    rule_logits,
    sample,
)
from service.engine.forward.row_states import PlannedStates
from service.engine.forward.rows import Candidates, ForwardOutput, Row
from service.engine.forward.sampling_batch import Integers, SamplingBatch
from service.model.transfer import PackedTables

#: candidates and numbers of hidden states that a program multiplies at once
_TILE, _STEP = 8, 512

#: hidden states `[R * L, H]` -> the table `[M, 4]` of some positions, as of `SampleLogits`
SamplePart = Callable[[Tensor], Tensor]

#: keeps the candidates of positions with these logits `[M, V]`, whose logsumexp is known or None
Fill = Callable[[Tensor, Tensor | None], None]


class DraftVocabulary:
    """The draft candidates of a forward's positions: those of earlier forwards, then those that are computed now.

    `slots` `[R, L]`: the index of a position's candidates, -1 for none. `present` `[R]`: whether a row already has its
    candidates. `missing` `[R]`: whether they are computed now.
    """

    def __init__(self, rows: Sequence[Row], length: int, num_candidates: int, mask_token_id: int) -> None:
        self._width, self._mask = num_candidates, mask_token_id
        self.slots = np.full((len(rows), length), -1, np.int64)
        self.present = np.zeros(len(rows), np.bool_)
        self._parts: list[Candidates] = []
        self._size = 0
        starts: dict[int, int] = {}
        for output, indices, anchored in _by_output(rows):
            if output.candidates is None or output.slots is None:
                raise AssertionError("a row is anchored on candidates of a forward that has none")
            if id(output.candidates) not in starts:
                starts[id(output.candidates)] = self._size
                self._parts.append(output.candidates)
                self._size += len(output.candidates.tokens)
            slots = output.slots[anchored]
            self.slots[indices] = np.where(slots < 0, -1, slots + starts[id(output.candidates)])
            self.present[indices] = True
        self.missing = np.array([row.drafts for row in rows]) & ~self.present & bool(num_candidates)

    @classmethod
    def for_rows(
        cls, rows: Sequence[Row], length: int, num_candidates: int, mask_token_id: int
    ) -> DraftVocabulary | None:
        if not any(row.drafts for row in rows):
            return None
        drafts = cls(rows, length, num_candidates, mask_token_id)
        return drafts if drafts.present.any() or drafts.missing.any() else None

    def covers(self, rows: Sequence[Row]) -> bool:
        """Whether all rows that are sampled already have their candidates."""
        sampled = np.array([row.sampling is not None for row in rows])
        return bool(self.present[sampled].all())

    def output(self, hidden: Tensor) -> ForwardOutput:
        """The forward's output with the candidates. `hidden`: `[R, L, H]`."""
        if not self._parts:
            return ForwardOutput(hidden)
        return ForwardOutput(hidden, self.joined, self.slots, self.missing | self.present)

    def plan_fill(self, batch: SamplingBatch, tables: PackedTables) -> Fill | None:
        """Plans new candidates, the top tokens of the logits, for the positions that miss them. None if none does."""
        missing = np.flatnonzero(self.missing[batch.row])
        if not len(missing):
            return None
        self.slots[batch.row[missing], batch.position[missing]] = self._size + np.arange(len(missing))
        self._size += len(missing)
        rows = None if len(missing) == len(batch) else tables.add(missing)
        table = np.empty((len(missing), 2), np.int32)
        table[:, 0], table[:, 1] = missing, batch.rule_temperature[missing].view(np.int32)
        sent = tables.add(table)

        def fill(logits: Tensor, totals: Tensor | None) -> None:
            selected = logits if rows is None else logits.index_select(0, rows.tensor)
            if totals is None:
                copy = selected.to(torch.float32, copy=True)
                self._parts.append(self._likeliest(rule_logits(copy, batch.select(missing))))
            else:
                self._parts.append(self._likeliest_by_kernel(selected, totals, sent.tensor))

        return fill

    def plan_sample(
        self, batch: SamplingBatch, tables: PackedTables, head: Tensor, states: PlannedStates | None, *, kernels: bool
    ) -> SamplePart:
        """Plans the choice of tokens from present candidates. `head`: `[V, H]`; `kernels`: whether by Triton."""
        slots, unknown = self.slots[batch.row, batch.position], batch.unknown
        if slots.min(initial=0, where=~unknown) < 0:
            raise AssertionError("a position is to be drafted whose candidates were not computed")
        earlier, locate = self.joined, None
        in_operations = not kernels or batch.metadata.masks or bool(batch.metadata.filtered[batch.row].any())
        if kernels:
            params = tables.add(_params(batch, slots))
            locate = None if states is None else states.plan_locate(batch, self.slots, params, tables)
            noisy = tables.add(np.flatnonzero(batch.random)) if in_operations else params
        else:
            positions, indices = tables.add(batch.flat), tables.add(slots)

        def by_operations(flat: Tensor) -> Tensor:
            keys = None
            if kernels:
                if locate is not None:
                    locate()
                keys, slots = noise_keys_of(params.tensor, noisy.tensor), params.tensor[:, 4].long()
                tokens, logits = earlier.tokens[slots], _candidate_logits(flat, head, earlier, params.tensor)
            else:
                slots = indices.tensor
                tokens = earlier.tokens[slots]
                logits = torch.einsum("mh,mch->mc", flat.index_select(0, positions.tensor), head[tokens])
            apply_grammar_masks(logits, batch, tokens)
            return sample(logits, batch, self._mask, Candidates(tokens, earlier.other_weight[slots]), keys)

        def by_kernels(flat: Tensor) -> Tensor:
            if locate is not None:
                locate()
            return choose_candidates(flat, head, earlier, params.tensor, noise=bool(batch.random.any()))

        return by_operations if in_operations else by_kernels

    @property
    def joined(self) -> Candidates:
        """The candidates of all positions."""
        if len(self._parts) > 1:
            tokens, weights = ([getattr(part, name) for part in self._parts] for name in ("tokens", "other_weight"))
            self._parts = [Candidates(torch.cat(tokens), torch.cat(weights))]
        return self._parts[0]

    def _likeliest(self, scaled: Tensor) -> Candidates:
        """scaled `[M, V]`, overwritten: in a large vocabulary a copy takes as long as the choice."""
        mask_logits = scaled[:, self._mask].clone()
        scaled[:, self._mask] = -torch.inf
        tokens = scaled.topk(self._width, sorted=False).indices
        scaled.scatter_(1, tokens, -torch.inf)[:, self._mask] = mask_logits
        highest = scaled.amax(-1, keepdim=True).clamp_(min=torch.finfo(scaled.dtype).min)  # a grammar may leave none
        return Candidates(tokens, scaled.sub_(highest).exp_().sum(-1).log_().add_(highest[:, 0]))

    def _likeliest_by_kernel(self, logits: Tensor, totals: Tensor, table: Tensor) -> Candidates:
        """As `_likeliest`, by logits `[M, V]` that stay as they are. `totals`, `table`: see `keep_candidates`."""
        from service.engine.forward import candidate_kernels

        count, width = len(logits), self._width
        highest, likeliest = logits.topk(width + 1, sorted=False)
        tokens, weights = likeliest.new_empty(count, width), totals.new_empty(count)
        stride, sizes = totals.stride(0), {"C": width, "PAD": _power(width + 1)}
        candidate_kernels.keep_candidates[count,](
            highest, likeliest, table, totals, tokens, weights, stride, self._mask, **sizes
        )
        return Candidates(tokens, weights)


def _by_output(rows: Sequence[Row]) -> list[tuple[ForwardOutput, Integers, Integers]]:
    groups: dict[int, tuple[ForwardOutput, list[int], list[int]]] = {}
    for index, row in enumerate(rows):
        if row.drafts and row.anchor is not None and row.anchor.has_candidates:
            output = row.anchor.output
            _, indices, rows_of_output = groups.setdefault(id(output), (output, [], []))
            indices.append(index)
            rows_of_output.append(row.anchor.row)
    return [(output, np.array(indices), np.array(anchored)) for output, indices, anchored in groups.values()]


def _params(batch: SamplingBatch, slots: Integers) -> NDArray[np.int32]:
    """The parameters of `choose_candidate`, `[M, 6]`. `slots` `[M]`: the indices of the positions' candidates."""
    params = drawing_params(batch, 6)
    params[:, 4], params[:, 5] = slots, batch.flat
    return params


def choose_candidates(flat: Tensor, head: Tensor, candidates: Candidates, params: Tensor, *, noise: bool) -> Tensor:
    """The tokens chosen from candidates, a table as `SampleLogits`, `[M, 4]`. Arguments as of `_candidate_logits`."""
    from service.engine.forward import candidate_kernels

    logits = _candidate_logits(flat, head, candidates, params)
    (count, width), out = logits.shape, logits.new_empty(len(params), 4)
    candidate_kernels.choose_candidate[count,](
        logits, candidates.tokens, candidates.other_weight, params, out, C=width, PAD=_power(width), NOISE=noise
    )
    return out


def _candidate_logits(flat: Tensor, head: Tensor, candidates: Candidates, params: Tensor) -> Tensor:
    """The candidates' logits, `[M, C]`. flat `[R * L, H]`, head `[V, H]`; `params`: as of `choose_candidate`."""
    from service.engine.forward import candidate_kernels

    count, width = len(params), candidates.tokens.shape[1]
    logits = torch.empty(count, width, device=flat.device)
    candidate_kernels.candidate_logits[count, -(-width // _TILE)](
        flat, head, candidates.tokens, params, logits, flat.shape[1], width, TILE=_TILE, STEP=_STEP
    )
    return logits


def _power(size: int) -> int:
    return 1 << (size - 1).bit_length()
