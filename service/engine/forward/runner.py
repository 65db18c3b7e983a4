"""Puts rows through the backbone or through MRP, and reads what came out.

Knows rows; no requests, no modes, no scheduling. Which rows share a forward is the grouping's business, how hidden
states are computed the networks', what is read off them the readout's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from service.decode.policy import Reading
from service.engine.forward.extent import MAX_LOGITS, MAX_SAMPLED_LOGITS
from service.engine.forward.grouping import Grouping, Together, join
from service.engine.forward.networks import Execution, Shapes, Which
from service.engine.forward.pending import Pending
from service.engine.forward.readout import Readout
from service.engine.forward.rows import Row
from service.engine.forward.vocabulary import vocabulary_for
from service.model.attention import resolve_backend
from service.model.checkpoint import Checkpoint
from service.model.config import ModelConfig

_T = TypeVar("_T")


class RowRunner(Protocol):
    """What an engine asks of a runner. `num_pages`: of its cache."""

    config: ModelConfig
    device: torch.device

    @property
    def num_pages(self) -> int:
        """Pages of its cache."""

    def evaluate(self, rows: Sequence[Row]) -> list[Reading]:
        """The backbone over rows; a Reading for every row."""

    def refine(self, rows: Sequence[Row]) -> list[Reading]:
        """MRP over anchored rows; a Reading for every row."""


class Runner:
    """The networks of a checkpoint over one paged cache. `num_candidates`: `readout.py`."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        num_pages: int,
        grouping: Grouping | None = None,
        num_candidates: int = 0,
        execution: Execution | None = None,
    ) -> None:
        asked = execution or Execution()
        attention = resolve_backend(asked.attention, checkpoint.device, checkpoint.dtype)
        execution = replace(asked, attention=attention)
        self.config, self.device = checkpoint.config, checkpoint.device
        vocabulary = checkpoint.config.vocab_size
        self._grouping = grouping or Together(
            max(1, MAX_LOGITS // vocabulary), max(1, MAX_SAMPLED_LOGITS // vocabulary)
        )
        shapes = Shapes(self._grouping.min_rows, self._grouping.same_shapes)
        self._networks = execution.networks(checkpoint, num_pages, shapes, execution)
        read = vocabulary_for(self.config.mask_token_id, checkpoint.device, checkpoint.dtype)
        self._readout = Readout(checkpoint.backbone, read, self._grouping, num_candidates)

    @property
    def num_pages(self) -> int:
        """Pages of its cache."""
        return self._networks.num_pages

    @torch.inference_mode()
    def evaluate(self, rows: Sequence[Row]) -> list[Reading]:
        """The backbone over rows; a Reading for every row, `handle` its `Anchor`."""
        return self._begin(rows, "backbone")()

    @torch.inference_mode()
    def refine(self, rows: Sequence[Row]) -> list[Reading]:
        """MRP over anchored rows; a Reading for every row, `handle` the next `Anchor`."""
        return self._begin(rows, "mrp")()

    @torch.inference_mode()
    def begin_evaluate(self, rows: Sequence[Row]) -> Pending[Reading]:
        """As `evaluate`, without waiting for the device."""
        return self._begin(rows, "backbone")

    @torch.inference_mode()
    def begin_refine(self, rows: Sequence[Row]) -> Pending[Reading]:
        """As `refine`, without waiting for the device."""
        return self._begin(rows, "mrp")

    def _begin(self, rows: Sequence[Row], which: Which) -> Pending[Reading]:
        hidden: list[Tensor] = []
        places: list[int] = []
        for group in self._grouping.rows(rows):
            order, states = self._networks.forward(which, group)
            own = [group.places[number] for number in order if number < len(group.places)]
            hidden.append(states[: len(own)])
            places += own
        if places == list(range(len(rows))):
            return self._readout.begin(rows, join(hidden))
        pending = self._readout.begin([rows[place] for place in places], join(hidden))
        return lambda: _put_back(pending(), places)


def _put_back(values: list[_T], places: list[int]) -> list[_T]:
    """The values in the order of their places."""
    return [value for _, value in sorted(zip(places, values, strict=True), key=itemgetter(0))]
