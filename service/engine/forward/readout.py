"""From hidden states to readings: which token each position would get, and how sure that is.

What decides what comes out is read over the whole vocabulary. What is only a draft may be read over a short list: the
likeliest tokens of each position by the backbone's last reading of the block, so that only their rows of `lm_head` are
multiplied. Over a vocabulary of 151,936 the whole head costs as much as MRP's layers.
Knows tensors, rows and reads; no requests, no modes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from service.decode.block import Known, Pick, make
from service.decode.policy import Reading
from service.engine.forward.anchors import Anchor, Candidates, States
from service.engine.forward.grouping import Grouping, join
from service.engine.forward.known import Asking
from service.engine.forward.lists import Lists
from service.engine.forward.pending import Pending
from service.engine.forward.reads import Integers, Reads
from service.engine.forward.rows import Row
from service.engine.forward.sampling import keep_allowed
from service.engine.forward.vocabulary import Vocabulary, chosen
from service.model.backbone import Backbone
from service.model.transfer import to_device_async, to_host_async


class _Part(NamedTuple):
    """What was read: the numbers of the reads, and token, confidence and entropy of each, `[M, 3]`, on the device."""

    numbers: Integers
    found: Tensor


class Readout:
    """Reads over a backbone's `lm_head`; a list has `num_candidates` tokens, 0: there are no lists."""

    def __init__(self, backbone: Backbone, vocabulary: Vocabulary, grouping: Grouping, num_candidates: int) -> None:
        self._backbone, self._vocabulary, self._grouping = backbone, vocabulary, grouping
        self._mask = vocabulary.mask_token_id
        self._num_candidates = min(num_candidates, len(backbone.head) - 1)

    def begin(self, rows: Sequence[Row], hidden: Tensor) -> Pending[Reading]:
        """hidden `[R, L, H]`; only positions that are read get logits. Does not wait for the device."""
        reads = Reads.of(rows, hidden.shape[1])
        lists = Lists.of(rows, hidden, self._num_candidates)
        flat, asking = hidden.flatten(0, 1), Asking(reads, self._mask)
        listed = lists.having[reads.row] if lists is not None else np.zeros(len(reads), np.bool_)
        parts = self._read(reads, np.flatnonzero(~listed), lambda members: self._choose(flat, members, lists, asking))
        if lists is not None:
            parts += self._read(reads, np.flatnonzero(listed), lambda own: self._choose_listed(flat, own, lists))
        states = States(hidden) if lists is None else lists.states(hidden)
        copied, known = _begin_copy(parts), asking.begin()
        return lambda: _readings(reads, states, _in_order(parts, copied().numpy()), known())

    def _read(self, reads: Reads, numbers: Integers, choose: Callable[[Reads], Tensor]) -> list[_Part]:
        """What is read off those of the numbers, still on the device; one part, or none."""
        if not len(numbers):
            return []
        groups = self._grouping.reads(reads.take(numbers) if len(numbers) < len(reads) else reads)
        found = join([choose(group.members)[: len(group.places)] for group in groups])
        return [_Part(numbers[np.concatenate([group.places for group in groups])], found)]

    def _choose(self, flat: Tensor, reads: Reads, lists: Lists | None, asking: Asking) -> Tensor:
        """flat `[R * L, H]` -> tokens, confidences, entropies (0 if none asks), `[M, 3]`, float64; fills the lists."""
        slots = to_device_async(reads.slot, flat.device)
        logits = self._backbone.logits(flat[slots])
        keep_allowed(logits, reads)
        asking.take(logits, reads)
        if not self._vocabulary.keeps_logits and lists is not None:
            lists.fill(reads, slots, logits, self._mask)
        found, weights = self._vocabulary.read(logits, reads)
        if weights is not None and lists is not None:
            lists.fill(reads, slots, logits, self._mask, weights)
        return found

    def _choose_listed(self, flat: Tensor, reads: Reads, lists: Lists) -> Tensor:
        """The same over the candidates alone."""
        slots = to_device_async(reads.slot, flat.device)
        tokens = lists.tokens[slots]
        logits = torch.einsum("mh,mch->mc", flat[slots], self._backbone.head[tokens])
        keep_allowed(logits, reads, tokens)
        return chosen(logits, reads, self._mask, Candidates(tokens, lists.others[slots]))


def _readings(reads: Reads, states: States, found: NDArray[np.float64], known: Mapping[int, Known]) -> list[Reading]:
    """What was found at each read, `[M, 3]` -> a Reading for each row. Judged reads stand behind all others."""
    rows, length = reads.questions.rows, reads.questions.length
    chosen = int(np.count_nonzero(reads.chosen))
    ends = np.bincount(reads.row[:chosen], minlength=len(rows)).cumsum().tolist()
    positions, tokens = tuple(reads.place[:chosen].tolist()), tuple(found[:, 0].astype(np.int64).tolist())
    confidences = tuple(found[:, 1].tolist())
    entropies = tuple(found[:, 2].tolist()) if reads.questions.entropy else ()
    judged = _judged(reads, tokens, confidences, chosen)
    readings, start = list[Reading](), 0
    for number, (row, end) in enumerate(zip(rows, ends, strict=True)):
        own = positions[start:end]
        readings.append(
            make(
                Reading,
                (
                    own,
                    tokens[start:end],
                    confidences[start:end],
                    judged.get(number, ()),
                    make(Anchor, (states, number)),
                    entropies[start:end] if row.entropy else (),
                    [known.get(number * length + place) for place in own] if known else (),
                ),
            )
        )
        start = end
    return readings


def _judged(
    reads: Reads, tokens: Sequence[int], confidences: Sequence[float], first: int
) -> dict[int, tuple[Pick, ...]]:
    """The judged positions of rows that have some, from read number `first` on."""
    judged = dict[int, tuple[Pick, ...]]()
    for row, *said in zip(
        reads.row[first:].tolist(), reads.place[first:].tolist(), tokens[first:], confidences[first:], strict=True
    ):
        judged[row] = (*judged.get(row, ()), Pick(*said))
    return judged


def _begin_copy(parts: Sequence[_Part]) -> Callable[[], Tensor]:
    """All in one copy to the CPU, `[M, 3]`."""
    return (
        to_host_async(join([part.found for part in parts])) if parts else lambda: torch.empty(0, 3, dtype=torch.float64)
    )


def _in_order(parts: Sequence[_Part], values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The values `[M, 3]` of the parts, in the order of the reads."""
    if not parts:
        return values
    ordered = np.empty_like(values)
    ordered[np.concatenate([part.numbers for part in parts])] = values
    return ordered
