"""From hidden states to readings: which token each position would get, and how sure that is.

What decides what comes out is read over the whole vocabulary. What is only a draft may be read over a short list: the
likeliest tokens of each position by the backbone's last reading of the block, so that only their rows of `lm_head` are
multiplied. Over a vocabulary of 151,936 the whole head costs as much as MRP's layers.
Knows tensors, rows and reads; no requests, no modes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from service.decode.block import Known, Pick
from service.decode.policy import Reading
from service.engine.forward.grouping import Grouping, in_places, join
from service.engine.forward.known import Asking
from service.engine.forward.pending import Pending
from service.engine.forward.rows import Row
from service.engine.forward.sampling import Candidates, Read, keep_allowed, scale
from service.engine.forward.vocabulary import Vocabulary, chosen
from service.model.backbone import Backbone
from service.model.transfer import fetch, send

#: The share of all probability that a list has at most, so that the others' weight is finite.
_ALL = 1.0 - 2.0**-24

#: slots and, for each, token, confidence and entropy, `[M, 3]`
_Part = tuple[list[int], Tensor]


class Readout:
    """Reads over a backbone's `lm_head`; a list has `num_candidates` tokens, 0: there are no lists."""

    def __init__(self, backbone: Backbone, vocabulary: Vocabulary, grouping: Grouping, num_candidates: int) -> None:
        self._backbone, self._vocabulary, self._grouping = backbone, vocabulary, grouping
        self._mask = vocabulary.mask_token_id
        self._num_candidates = min(num_candidates, len(backbone.head) - 1)

    def begin(self, rows: Sequence[Row], hidden: Tensor) -> Pending[Reading]:
        """hidden `[R, L, H]`; only positions that are read get logits. Does not wait for the device."""
        flat, length = hidden.flatten(0, 1), hidden.shape[1]
        reads = [row.reads(number, length) for number, row in enumerate(rows)]
        lists = _Lists.of(rows, flat, self._num_candidates)
        short = [read for row, own in zip(rows, reads, strict=True) if row.candidates is not None for read in own]
        whole = [read for row, own in zip(rows, reads, strict=True) if row.candidates is None for read in own]
        asking = Asking(whole, self._mask)
        found = self._read(whole, lambda members: self._choose(flat, members, lists, asking))
        if lists is not None:
            found += self._read(short, lambda members: self._choose_listed(flat, members, lists))
        copied, known = _begin_copy(found), asking.begin()
        return lambda: _readings(rows, hidden, reads, lists, _in_order(reads, found, copied().numpy()), known())

    def _read(self, reads: list[Read], choose: Callable[[Sequence[Read]], Tensor]) -> list[_Part]:
        """The slots of the reads and what was chosen there, still on the device; one part, or none."""
        if not reads:
            return []
        groups = self._grouping.reads(reads)
        slots = [reads[place].slot for place in in_places(groups)]
        return [(slots, join([choose(group.members)[: len(group.places)] for group in groups]))]

    def _choose(self, flat: Tensor, reads: Sequence[Read], lists: _Lists | None, asking: Asking) -> Tensor:
        """flat `[R * L, H]` -> tokens, confidences, entropies (0 if none asks), `[M, 3]`, float64; fills the lists."""
        slots = _slots(reads, flat)
        logits = self._backbone.logits(flat[slots])
        keep_allowed(logits, reads)
        asking.take(logits, reads)
        if not self._vocabulary.keeps_logits and lists is not None:
            lists.fill(reads, slots, logits, self._mask)
        found, weights = self._vocabulary.read(logits, reads)
        if weights is not None and lists is not None:
            lists.fill(reads, slots, logits, self._mask, weights)
        return found

    def _choose_listed(self, flat: Tensor, reads: Sequence[Read], lists: _Lists) -> Tensor:
        """The same over the candidates alone."""
        slots = _slots(reads, flat)
        tokens = lists.tokens[slots]
        logits = torch.einsum("mh,mch->mc", flat[slots], self._backbone.head[tokens])
        keep_allowed(logits, reads, tokens)
        return chosen(logits, reads, self._mask, Candidates(tokens, lists.others[slots]))


@dataclass(frozen=True, slots=True)
class _Lists:
    """The candidates of every position, `[R * L, …]`, `length` L. `wanted`: the rows that have none yet."""

    tokens: Tensor
    others: Tensor
    wanted: frozenset[int]
    rows: frozenset[int]
    length: int

    @classmethod
    def of(cls, rows: Sequence[Row], flat: Tensor, num_candidates: int) -> _Lists | None:
        """Those that rows bring along, and room for those that they want; None if there are neither."""
        having = {number: row.candidates for number, row in enumerate(rows) if row.candidates is not None}
        drafting = (number for number, row in enumerate(rows) if row.drafts and row.candidates is None)
        wanted = frozenset(drafting if num_candidates else ())
        if not having and not wanted:
            return None
        length = len(flat) // len(rows)
        width = next((known.tokens.shape[-1] for known in having.values()), num_candidates)
        tokens = torch.zeros(len(rows), length, width, dtype=torch.long, device=flat.device)
        others = torch.zeros(len(rows), length, device=flat.device)
        for number, known in having.items():
            tokens[number], others[number] = known.tokens, known.others
        return cls(tokens.flatten(0, 1), others.flatten(), wanted, wanted | frozenset(having), length)

    def fill(
        self, reads: Sequence[Read], slots: Tensor, logits: Tensor, mask_token_id: int, weights: Tensor | None = None
    ) -> None:
        """The likeliest tokens by `logits` `[M, V]` of the reads' positions `slots` `[M]`, where they are wanted.

        `weights` `[M]`: the logits' logsumexp, with which no copy in float32 is needed.
        """
        wanting = [number for number, read in enumerate(reads) if read.slot // self.length in self.wanted]
        if not wanting:
            return
        here = send(np.array(wanting), logits.device)
        asking = [reads[number] for number in wanting]
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

    def of_row(self, number: int) -> Candidates | None:
        """`[L, …]`, or None for a row that has none."""
        own = slice(number * self.length, (number + 1) * self.length)
        return Candidates(self.tokens[own], self.others[own]) if number in self.rows else None


def _readings(
    rows: Sequence[Row],
    hidden: Tensor,
    reads: Sequence[list[Read]],
    lists: _Lists | None,
    found: NDArray[np.float64],
    known: Mapping[int, Known],
) -> list[Reading]:
    """hidden `[R, L, H]` and what was chosen by each read `[M, 3]` -> a Reading for each row."""
    length, readings, end = hidden.shape[1], [], 0
    tokens, sure = found[:, 0].astype(np.int64).tolist(), found[:, 1].tolist()
    for number, (row, own, handle) in enumerate(zip(rows, reads, hidden.unbind(0), strict=True)):
        start, first = end, number * length
        end = start + len(own)
        masked = end - len(row.judge) if own else end  # they come before the judged ones
        positions = [read.slot - first for read in own[: masked - start]]
        judged = [Pick(own[at - start].slot - first, tokens[at], sure[at]) for at in range(masked, end)]
        entropies = dict(zip(positions, found[start:masked, 2].tolist(), strict=True)) if _entropy(own) else {}
        kept = lists.of_row(number) if lists is not None else None
        told = [known.get(first + position) for position in positions] if known else ()
        readings.append(
            Reading(positions, tokens[start:masked], sure[start:masked], tuple(judged), handle, entropies, kept, told)
        )
    return readings


def _entropy(own: Sequence[Read]) -> bool:
    """Whether a row's reads ask for entropies: all do or none does."""
    return bool(own) and own[0].entropy


def _slots(reads: Sequence[Read], flat: Tensor) -> Tensor:
    return send(np.array([read.slot for read in reads]), flat.device)


def _begin_copy(found: Sequence[_Part]) -> Callable[[], Tensor]:
    """All in one copy to the CPU, `[M, 3]`."""
    return fetch(join([part for _, part in found])) if found else lambda: torch.empty(0, 3, dtype=torch.float64)


def _in_order(reads: Sequence[list[Read]], found: Sequence[_Part], values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The values `[M, 3]` of the parts, in the order of the reads."""
    wanted, computed = [read.slot for own in reads for read in own], [slot for own, _ in found for slot in own]
    if wanted == computed:
        return values
    places = np.empty(1 + max(computed), np.int64)
    places[computed] = np.arange(len(computed))
    ordered: NDArray[np.float64] = values[places[wanted]]
    return ordered
