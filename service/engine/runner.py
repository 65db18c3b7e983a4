"""Puts rows through the backbone or through MRP and reads tokens off them.

Knows tensors, rows and reads; no requests, no modes, no scheduling. Which rows share a forward is the
grouping's business. One copy to the CPU a pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from operator import itemgetter
from typing import TypeVar

import torch
from torch import Tensor

from service.decode.block import Pick
from service.decode.policy import Reading
from service.engine.grouping import Group, Grouping, Together, in_places
from service.engine.rows import Row, RowTensors, to_tensors
from service.engine.sampling import Read, choose, entropies
from service.errors import SettingsError
from service.model.attention import PagedAttention, PagedCache
from service.model.checkpoint import Checkpoint

#: Logits that exist at once; 2^28 are 1 GiB in fp32, some 1,700 positions of a vocabulary of 151,936.
_MAX_LOGITS = 2**28

_T = TypeVar("_T")


class Runner:
    """The networks of a checkpoint over one paged cache."""

    def __init__(self, checkpoint: Checkpoint, num_pages: int, grouping: Grouping | None = None) -> None:
        self.config = checkpoint.config
        self._backbone, self._mrp = checkpoint.backbone, checkpoint.mrp
        self._device = checkpoint.device
        self._grouping = grouping or Together(max(1, _MAX_LOGITS // checkpoint.config.vocab_size))
        self._cache = PagedCache(checkpoint.config, num_pages, checkpoint.device, checkpoint.dtype)

    @torch.inference_mode()
    def evaluate(self, rows: Sequence[Row]) -> list[Reading]:
        """The backbone over rows; a Reading for every row, `handle` its hidden states `[L, H]`."""
        return self._run(rows, self._backbone_hidden)

    @torch.inference_mode()
    def refine(self, rows: Sequence[Row]) -> list[Reading]:
        """MRP over anchored rows; a Reading for every row, `handle` the next anchor."""
        return self._run(rows, self._mrp_hidden)

    def _run(self, rows: Sequence[Row], forward: Callable[[Group[Row]], Tensor]) -> list[Reading]:
        groups = self._grouping.rows(rows)
        hidden = _join([forward(group)[: len(group.places)] for group in groups])
        places = in_places(groups)
        return _put_back(self._read([rows[place] for place in places], hidden), places)

    def _backbone_hidden(self, group: Group[Row]) -> Tensor:
        """-> hidden states `[R, L, H]`."""
        inputs = self._inputs(group)
        hidden: Tensor = self._backbone(inputs.tokens, inputs.positions, PagedAttention(self._cache, inputs.table))
        return hidden

    def _mrp_hidden(self, group: Group[Row]) -> Tensor:
        """-> the next anchors `[R, L, H]`."""
        if self._mrp is None:
            raise SettingsError("this checkpoint has no MRP module")
        inputs = self._inputs(group)
        anchors = torch.stack([row.anchor for row in group.members if row.anchor is not None])
        embedded, rotation = self._backbone.embed_tokens(inputs.tokens), self._backbone.rotary(inputs.positions)
        hidden: Tensor = self._mrp(embedded, anchors, rotation, PagedAttention(self._cache, inputs.table))
        return hidden

    def _inputs(self, group: Group[Row]) -> RowTensors:
        config = self.config
        return to_tensors(group.members, config.block_size, config.mask_token_id, self._device, group.width)

    def _read(self, rows: Sequence[Row], hidden: Tensor) -> list[Reading]:
        """hidden `[R, L, H]`; only positions that are read get logits."""
        reads = [row.reads(number, self.config.block_size) for number, row in enumerate(rows)]
        chosen = iter(self._pick(hidden, [read for row_reads in reads for read in row_reads]))
        readings = []
        for row, row_reads, handle in zip(rows, reads, hidden.unbind(0), strict=True):
            own = list(islice(chosen, len(row_reads)))
            masked = len(own) - len(row.judge) if own else 0
            picks = tuple(pick for pick, _ in own)
            entropy = {pick.position: value for pick, value in own[:masked]} if row.entropy else {}
            readings.append(Reading(picks[:masked], picks[masked:], handle, entropy))
        return readings

    def _pick(self, hidden: Tensor, reads: list[Read]) -> list[tuple[Pick, float]]:
        """The picks and entropies of all reads: hidden `[R, L, H]`, one copy to the CPU."""
        if not reads:
            return []
        flat, length = hidden.flatten(0, 1), self.config.block_size
        groups = self._grouping.reads(reads)
        chosen = _join([self._choose(flat, group.members)[: len(group.places)] for group in groups])
        places = in_places(groups)
        picks = [
            (Pick(reads[place].slot % length, int(token), confidence), entropy)
            for place, (token, confidence, entropy) in zip(places, chosen.tolist(), strict=True)
        ]
        return _put_back(picks, places)

    def _choose(self, flat: Tensor, reads: Sequence[Read]) -> Tensor:
        """flat `[R * L, H]` -> tokens, confidences, entropies (0 if none asks), `[M, 3]`, float64 (exact for all)."""
        slots = torch.tensor([read.slot for read in reads]).to(self._device)
        logits = self._backbone.logits(flat[slots])
        asked = any(read.entropy for read in reads)
        entropy = entropies(logits, reads) if asked else torch.zeros(len(reads), device=self._device)
        tokens, confidences = choose(logits, reads, self.config.mask_token_id)
        return torch.stack([tokens.double(), confidences.double(), entropy.double()], dim=1)


def _join(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _put_back(values: list[_T], places: list[int]) -> list[_T]:
    """The values in the order of their places."""
    return [value for _, value in sorted(zip(places, values, strict=True), key=itemgetter(0))]
