"""Puts rows through the backbone or through MRP.

Knows tensors and rows; no requests, no modes, no scheduling. Which rows share a forward is the grouping's business,
what is read off the hidden states the readout's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from service.decode.policy import Reading
from service.engine.grouping import Group, Grouping, Together, in_places, join
from service.engine.readout import Readout
from service.engine.rows import Row, RowTensors, to_tensors
from service.errors import SettingsError
from service.model.attention import PagedAttention, PagedCache
from service.model.checkpoint import Checkpoint
from service.model.config import ModelConfig

#: Logits that exist at once: 2^28 are 1 GiB in fp32, some 1,700 positions of a vocabulary of 151,936. Sampling makes
#: six more copies (measured), so that a quarter of them takes 1.6 GiB.
_MAX_LOGITS, _MAX_SAMPLED_LOGITS = 2**28, 2**26

_T = TypeVar("_T")


class RowRunner(Protocol):
    """What an engine asks of a runner."""

    config: ModelConfig
    device: torch.device

    def evaluate(self, rows: Sequence[Row]) -> list[Reading]:
        """The backbone over rows; a Reading for every row."""

    def refine(self, rows: Sequence[Row]) -> list[Reading]:
        """MRP over anchored rows; a Reading for every row."""


class Runner:
    """The networks of a checkpoint over one paged cache. `num_candidates`: `readout.py`."""

    def __init__(
        self, checkpoint: Checkpoint, num_pages: int, grouping: Grouping | None = None, num_candidates: int = 0
    ) -> None:
        self.config = checkpoint.config
        self._backbone, self._mrp = checkpoint.backbone, checkpoint.mrp
        self.device = checkpoint.device
        vocabulary = checkpoint.config.vocab_size
        self._grouping = grouping or Together(
            max(1, _MAX_LOGITS // vocabulary), max(1, _MAX_SAMPLED_LOGITS // vocabulary)
        )
        self._readout = Readout(self._backbone, self.config.mask_token_id, self._grouping, num_candidates)
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
        hidden = join([forward(group)[: len(group.places)] for group in groups])
        places = in_places(groups)
        return _put_back(self._readout.read([rows[place] for place in places], hidden), places)

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
        return to_tensors(group.members, config.block_size, config.mask_token_id, self.device, group.width)


def _put_back(values: list[_T], places: list[int]) -> list[_T]:
    """The values in the order of their places."""
    return [value for _, value in sorted(zip(places, values, strict=True), key=itemgetter(0))]
