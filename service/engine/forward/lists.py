"""The short lists that drafts are chosen from: which tokens each position of a block may get, by an earlier reading.

`readout.py` fills them where a whole vocabulary is read anyway, and reads drafts over them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from service.engine.forward.anchors import Candidates, States, gathered
from service.engine.forward.reads import Reads
from service.engine.forward.rows import Row
from service.engine.forward.sampling import scale
from service.model.transfer import to_device_async

#: The share of all probability that a list has at most, so that the others' weight is finite.
_ALL = 1.0 - 2.0**-24


class Lists(NamedTuple):
    """The candidates of every position, `[R * L, …]`. `wanted`, `having`: which rows get them now, have them, `[R]`."""

    tokens: Tensor
    others: Tensor
    wanted: NDArray[np.bool_]
    having: NDArray[np.bool_]

    @classmethod
    def of(cls, rows: Sequence[Row], hidden: Tensor, num_candidates: int) -> Lists | None:
        """Those that rows bring along, and room for those that they want; None if there are neither."""
        anchors = {number: row.anchor for number, row in enumerate(rows) if row.drafts and row.anchor is not None}
        brought = {number: anchor for number, anchor in anchors.items() if anchor.listed}
        having = np.zeros(len(rows), np.bool_)
        having[list(brought)] = True
        drafting = np.array([row.drafts for row in rows]) & bool(num_candidates)
        if not (having.any() or drafting.any()):
            return None
        given = [anchor.states.lists for anchor in brought.values() if anchor.states.lists is not None]
        width = given[0].tokens.shape[-1] if given else num_candidates
        tokens = torch.zeros(*hidden.shape[:2], width, dtype=torch.long, device=hidden.device)
        others = torch.zeros(*hidden.shape[:2], device=hidden.device)
        if brought:
            here = to_device_async(np.array(list(brought)), hidden.device)
            tokens.index_copy_(0, here, gathered(list(brought.values()), lambda states: _of(states).tokens))
            others.index_copy_(0, here, gathered(list(brought.values()), lambda states: _of(states).others))
        return cls(tokens.flatten(0, 1), others.flatten(), drafting & ~having, having)

    def states(self, hidden: Tensor) -> States:
        """What the forward leaves."""
        shape = hidden.shape[:2]
        return States(
            hidden, Candidates(self.tokens.unflatten(0, shape), self.others.unflatten(0, shape)),
            self.wanted | self.having,
        )  # fmt: skip

    def fill(
        self, reads: Reads, slots: Tensor, logits: Tensor, mask_token_id: int, weights: Tensor | None = None
    ) -> None:
        """The likeliest tokens by `logits` `[M, V]` of the reads' positions `slots` `[M]`, where they are wanted.

        `weights` `[M]`: the logits' logsumexp, with which no copy in float32 is needed.
        """
        wanting = np.flatnonzero(self.wanted[reads.row])
        if not len(wanting):
            return
        here, asking = to_device_async(wanting, logits.device), reads.take(wanting)
        known = logits[here] if weights is not None else scale(logits[here].float(), asking)
        possible = known.clone() if weights is None else known
        possible[:, mask_token_id] = -torch.inf
        highest, tokens = possible.topk(self.tokens.shape[1], sorted=False)
        self.tokens[slots[here]] = tokens
        if weights is None:
            others = known.scatter(1, tokens, -torch.inf).logsumexp(-1)
        else:
            total = weights[here]
            listed = (scale(highest.float(), asking) - total[:, None]).exp().sum(-1)
            others = total + torch.log1p(-listed.clamp(max=_ALL))
        self.others[slots[here]] = others


def _of(states: States) -> Candidates:
    if states.lists is None:
        raise AssertionError("a row brings candidates of a forward that has none")
    return states.lists
