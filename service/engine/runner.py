"""Puts rows through the backbone or through MRP and reads tokens off them.

Knows tensors, rows and reads; no requests, no modes, no scheduling. One copy to the CPU a pass.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from service.decode.block import Pick
from service.decode.policy import Reading
from service.engine.rows import Row, to_tensors
from service.engine.sampling import Read, choose
from service.errors import SettingsError
from service.model.attention import PagedAttention, PagedCache
from service.model.checkpoint import Checkpoint

#: Logits that exist at once; 2^28 are 1 GiB in fp32, some 1,700 positions of a vocabulary of 151,936.
_MAX_LOGITS = 2**28


class Runner:
    """The networks of a checkpoint over one paged cache."""

    def __init__(self, checkpoint: Checkpoint, num_pages: int) -> None:
        self.config = checkpoint.config
        self._backbone, self._mrp = checkpoint.backbone, checkpoint.mrp
        self._device = checkpoint.device
        self._max_reads = max(1, _MAX_LOGITS // checkpoint.config.vocab_size)
        self._cache = PagedCache(checkpoint.config, num_pages, checkpoint.device, checkpoint.dtype)

    @torch.inference_mode()
    def evaluate(self, rows: Sequence[Row]) -> list[Reading]:
        """One backbone forward; a Reading for every row, `handle` its hidden states `[L, H]`."""
        inputs = to_tensors(rows, self.config.block_size, self.config.mask_token_id, self._device)
        attend = PagedAttention(self._cache, inputs.table)
        return self._read(rows, self._backbone(inputs.tokens, inputs.positions, attend))

    @torch.inference_mode()
    def refine(self, rows: Sequence[Row]) -> list[Reading]:
        """One MRP forward over anchored rows; a Reading for every row, `handle` the next anchor."""
        if self._mrp is None:
            raise SettingsError("this checkpoint has no MRP module")
        inputs = to_tensors(rows, self.config.block_size, self.config.mask_token_id, self._device)
        anchors = torch.stack([row.anchor for row in rows if row.anchor is not None])
        embedded, rotation = self._backbone.embed_tokens(inputs.tokens), self._backbone.rotary(inputs.positions)
        return self._read(rows, self._mrp(embedded, anchors, rotation, PagedAttention(self._cache, inputs.table)))

    def _read(self, rows: Sequence[Row], hidden: Tensor) -> list[Reading]:
        """hidden `[R, L, H]`; only positions that are read get logits."""
        reads = [row.reads(number, self.config.block_size) for number, row in enumerate(rows)]
        picks = self._pick(hidden, [read for row_reads in reads for read in row_reads])
        readings, done = [], 0
        for row, row_reads, handle in zip(rows, reads, hidden.unbind(0), strict=True):
            end = done + len(row_reads)
            judged = end - len(row.judge) if row_reads else end
            readings.append(Reading(tuple(picks[done:judged]), tuple(picks[judged:end]), handle))
            done = end
        return readings

    def _pick(self, hidden: Tensor, reads: list[Read]) -> list[Pick]:
        """The picks of all reads: hidden `[R, L, H]`, logits in chunks, one copy to the CPU."""
        if not reads:
            return []
        flat, length, limit = hidden.flatten(0, 1), self.config.block_size, self._max_reads
        chunks = [self._choose(flat, reads[start : start + limit]) for start in range(0, len(reads), limit)]
        values = torch.cat(chunks, dim=1).tolist()
        return [Pick(read.slot % length, int(t), c) for read, t, c in zip(reads, *values, strict=True)]

    def _choose(self, flat: Tensor, reads: list[Read]) -> Tensor:
        """flat `[R * L, H]` -> tokens and confidences, `[2, M]`, float64 (exact for both)."""
        slots = torch.tensor([read.slot for read in reads]).to(self._device)
        tokens, confidences = choose(self._backbone.logits(flat[slots]), reads, self.config.mask_token_id)
        return torch.stack([tokens.double(), confidences.double()])
