"""A running request of a model whose outputs predict the next token (`ModelConfig.shifted`).

A row of the block before reads a block's first position: its commit, or its prefill. The evaluation of the others
follows. So only within a block rows begin ahead, and of modes with a fixed number of picks.
"""

from collections.abc import Sequence
from typing import cast

from msgspec.structs import replace

from service.decode.block import MASKED
from service.decode.first_token import decode_after_first
from service.decode.policy import Evaluate, Prediction
from service.engine.diffusion_request import DiffusionRequest
from service.engine.forward.rows import Row
from service.model.config import ModelConfig


class ShiftedRequest(DiffusionRequest):
    """A running request whose blocks are denoised after their first positions."""

    __slots__ = ()

    def _go_ahead(self, model: ModelConfig, *, uses_candidates: bool) -> None:  # noqa: ARG002 - drafts are in turns
        if self.request.mode.pace is not None and self.request.mode.pace.is_fixed:
            super()._go_ahead(model, uses_candidates=False)
            self.replays, self.drafts.by_device = None, False

    @property
    def num_rows(self) -> int:
        stored = len(self.blocks.unwritten)
        return stored if stored and self._reads_first else super().num_rows

    @property
    def _reads_first(self) -> bool:
        """Whether the first position is read next, by a row of the block before."""
        query = self._query
        if self._num_unread:
            following = None if self._lookahead is None else self._lookahead.next
            return following is not None and following.anchor is None
        return isinstance(query, Evaluate) and query.states[0].tokens[0] == MASKED

    def next_rows(self, budget: int, prompt_budget: int | None = None) -> list[Row]:
        if not self._reads_first:
            return super().next_rows(budget, prompt_budget)
        rows = self._rows_to_store(budget, prompt_budget)
        return rows if len(rows) < len(self.blocks.unwritten) else self._with_first(rows, budget)

    def _with_first(self, rows: list[Row], budget: int) -> list[Row]:
        """The rows to store. The last one also reads the first position of the block that is decoded.

        If its block is stored already, as the prompt's last one may be, it is computed again and not stored.
        """
        if not budget:
            return rows
        read = self._row if self._num_unread else self._rows(cast(Evaluate, self._query))[0]
        stored = rows.pop() if rows else self._stored_row(self._index - 1)
        return [
            *rows,
            replace(
                stored,
                sampling=read.sampling,
                mask=read.mask,
                logprobs=read.logprobs,
                adjustments=read.adjustments,
                opens_next=True,
                unsampled=read.unsampled,
            ),
        ]

    def receive_predictions(self, rows: list[Row], predictions: Sequence[Prediction]) -> None:
        if not rows[-1].opens_next:
            super().receive_predictions(rows, predictions)
            return
        self._num_unread -= 1
        self._send((replace(predictions[-1], positions=(0,)),))

    def _start_block(self, head: tuple[int, ...] = ()) -> None:
        super()._start_block(head)
        self._decoding = decode_after_first(self.request.mode, self._canvas)
