"""The draft vocabulary: the candidates that each position's draft is chosen from, by an earlier prediction.

`sampler.py` fills it where a whole vocabulary is computed anyway, and samples drafts over it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from service.engine.forward.logits_sampler import apply_temperature
from service.engine.forward.rows import Candidates, ForwardOutput, Row, gathered
from service.engine.forward.sampling_batch import SamplingBatch
from service.model.transfer import to_device_async

#: The largest total probability of a position's candidates, so that the others' weight is finite.
_ALL = 1.0 - 2.0**-24


class DraftVocabulary(NamedTuple):
    """The candidates of every position of a forward, `[R * L, …]`.

    `missing`: the rows whose candidates are computed now, `[R]`. `present`: the rows that already have them, `[R]`.
    """

    tokens: Tensor
    others: Tensor
    missing: NDArray[np.bool_]
    present: NDArray[np.bool_]

    @classmethod
    def of(cls, rows: Sequence[Row], hidden: Tensor, num_candidates: int) -> DraftVocabulary | None:
        """The candidates that rows already have, and space for those to be computed. None if no row drafts."""
        anchors = {index: row.anchor for index, row in enumerate(rows) if row.drafts and row.anchor is not None}
        anchors = {index: anchor for index, anchor in anchors.items() if anchor.has_candidates}
        present = np.zeros(len(rows), np.bool_)
        present[list(anchors)] = True
        drafting = np.array([row.drafts for row in rows]) & bool(num_candidates)
        if not (present.any() or drafting.any()):
            return None
        earlier = [_candidates(anchor.output) for anchor in anchors.values()]
        width = earlier[0].tokens.shape[-1] if earlier else num_candidates
        tokens = torch.zeros(*hidden.shape[:2], width, dtype=torch.long, device=hidden.device)
        others = torch.zeros(*hidden.shape[:2], device=hidden.device)
        if anchors:
            indices = to_device_async(np.array(list(anchors)), hidden.device)
            tokens.index_copy_(0, indices, gathered(list(anchors.values()), lambda output: _candidates(output).tokens))
            others.index_copy_(0, indices, gathered(list(anchors.values()), lambda output: _candidates(output).others))
        return cls(tokens.flatten(0, 1), others.flatten(), drafting & ~present, present)

    def output(self, hidden: Tensor) -> ForwardOutput:
        """The forward's output with the candidates. `hidden`: `[R, L, H]`."""
        shape = hidden.shape[:2]
        candidates = Candidates(self.tokens.unflatten(0, shape), self.others.unflatten(0, shape))
        return ForwardOutput(hidden, candidates, self.missing | self.present)

    def fill(
        self,
        batch: SamplingBatch,
        flat: Tensor,
        logits: Tensor,
        mask_token_id: int,
        total: Tensor | None = None,
    ) -> None:
        """Sets missing candidates to the likeliest tokens by `logits` `[M, V]` of the positions `flat` `[M]`.

        `total` `[M]`: the logits' logsumexp, with which no copy in float32 is needed.
        """
        missing = np.flatnonzero(self.missing[batch.row])
        if not len(missing):
            return
        indices, selected = to_device_async(missing, logits.device), batch.select(missing)
        scaled = logits[indices] if total is not None else apply_temperature(logits[indices].float(), selected)
        possible = scaled.clone() if total is None else scaled
        possible[:, mask_token_id] = -torch.inf
        highest, tokens = possible.topk(self.tokens.shape[1], sorted=False)
        self.tokens[flat[indices]] = tokens
        if total is None:
            others = scaled.scatter(1, tokens, -torch.inf).logsumexp(-1)
        else:
            weight = total[indices]
            share = (apply_temperature(highest.float(), selected) - weight[:, None]).exp().sum(-1)
            others = weight + torch.log1p(-share.clamp(max=_ALL))
        self.others[flat[indices]] = others


def _candidates(output: ForwardOutput) -> Candidates:
    if output.candidates is None:
        raise AssertionError("a row is anchored on candidates of a forward that has none")
    return output.candidates
