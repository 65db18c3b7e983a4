"""A running request of `ScoreMode`: the masked positions of its prompt are scored, nothing is decoded.

From the first masked position on to the block of the last one, every block is a row: its masks are scored, and its KV
is written for the blocks after it, to pages that no other request shares. Where outputs are shifted, the first row has
the position before the first masked one, and a row also scores the first position of the block after it.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice

from msgspec.structs import replace

from service.decode.block import MASKED, Block, PositionLogprobs
from service.decode.policy import Prediction
from service.engine.forward.rows import Anchor, Row
from service.engine.request import BlockEvent, FinishReason, Stats
from service.engine.running_request import Admitted, RunningRequest, check_finite
from service.errors import MrpServeError


class ScoringRequest(RunningRequest):
    """A running request whose positions are scored. Its only event has the log-probabilities at every position."""

    __slots__ = ("_length", "_scores", "_shifted", "_to_score")

    grows = False

    def __init__(self, admitted: Admitted) -> None:
        super().__init__(admitted)
        request, model = admitted.request, admitted.model
        self._shifted, self._length = model.shifted, len(request.prompt_token_ids)
        self._scores: list[tuple[int, PositionLogprobs]] = []
        size, first = self._block_size, self._num_prompt_blocks
        text = request.prompt_token_ids[first * size :]
        last = max(position for position, token in enumerate(text) if token == MASKED) // size
        rows = [self._block(text[index * size :], first + index) for index in range(last + 1)]
        self._to_score = deque([*rows[:-1], replace(rows[-1], writes_kv=False)])

    def start(self) -> None:
        """Does nothing: there is no grammar and no policy."""

    @property
    def num_rows(self) -> int:
        return len(self.blocks.unwritten) + len(self._to_score)

    def next_rows(self, budget: int, prompt_budget: int | None = None) -> list[Row]:
        rows = self._rows_to_store(budget, prompt_budget)
        if len(rows) == len(self.blocks.unwritten):
            rows += islice(self._to_score, budget - len(rows))
        return rows

    @property
    def waits(self) -> bool:
        return not self.blocks.unwritten and not self._to_score

    def begin(self, rows: list[Row], anchors: Sequence[Anchor]) -> None:
        for _ in rows[self.blocks.begin(rows, anchors) :]:
            self._to_score.popleft()
            self._num_unread += 1

    def receive_predictions(self, rows: list[Row], predictions: Sequence[Prediction]) -> None:
        scored = [pair for pair in zip(rows, predictions, strict=True) if pair[0].kind == "denoise"]
        check_finite([prediction for _, prediction in scored])
        for row, prediction in scored:
            self._scores += self._scored(row, prediction)
        self._num_unread -= len(scored)
        if not self.blocks.unwritten and not self._to_score and not self._num_unread:
            self._end("stop")

    def fail(self, error: MrpServeError) -> None:
        self._to_score.clear()
        super().fail(error)

    def _block(self, tokens: tuple[int, ...], index: int) -> Row:
        """The row of a block. `tokens`: the text from the block on."""
        size, request = self._block_size, self.request
        block = Block(tokens[:size] + (MASKED,) * (size - len(tokens)))
        row = Row(block, index, self.lease.pages, writes_kv=True, sampling=request.sampling, logprobs=request.logprobs)
        if self._shifted:  # all masked positions are read, also in later sub-blocks
            read = tuple(position for position in block.masked if position)
            row = replace(row, rescore=read, edits=True, opens_next=tokens[size : size + 1] == (MASKED,))
        return row if row.opens_next or not block.complete else replace(row, sampling=None, logprobs=None)

    def _scored(self, row: Row, prediction: Prediction) -> Iterator[tuple[int, PositionLogprobs]]:
        for pick in prediction.picks:
            position = row.index * self._block_size + pick.position
            if position < self._length:
                yield position, pick.logprobs or PositionLogprobs()

    def _end(self, reason: FinishReason) -> None:
        self._to_score.clear()
        self.finish_reason = reason
        scores = tuple(self._scores)
        self.stats.add_event(BlockEvent(self.request.request_id, 0, (), Stats(), reason, position_logprobs=scores))
