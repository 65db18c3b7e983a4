"""One running request of params `Score`: the masked places of its prompt are read, nothing is decoded.

The blocks before the first place are a prompt like any other. From there on to the block of the last place, every block
is a row of its own: its masks are read, and its KV is written for the blocks after it, to pages that nobody shares. All
of these rows are in one forward if they fit. A block therefore sees the masks of the blocks before it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice

from service.decode.block import MASKED, Block, Known
from service.decode.canvas import Canvas
from service.decode.policy import Reading
from service.engine.forward.rows import Row
from service.engine.record import End
from service.engine.request import FinishReason, ForwardKind
from service.engine.sequence import Sequence
from service.errors import MrpServeError


class ReadingSequence(Sequence):
    """A running request whose places are read. Its only event has what is known of every place."""

    def start(self) -> None:
        """Nothing is to be opened."""

    def next_rows(self, budget: int, prompt_budget: int | None = None) -> list[Row]:
        """As of any request: blocks to store come first, then as many blocks with places as fit."""
        rows = super().next_rows(budget, prompt_budget)
        if len(rows) == len(self._unwritten):
            rows += islice(self._blocks, budget - len(rows))
        return rows

    def accept(self, rows: list[Row], readings: list[Reading]) -> tuple[ForwardKind, ...]:
        """Takes the readings. The request ends with that of the last block."""
        stored = sum(row.index < self._prompt_blocks for row in rows)
        for row in rows[:stored]:
            self._unwritten.popleft()
            self.written.append(row.state.tokens)
        kinds: tuple[ForwardKind, ...] = ("prefill",) if stored else ()
        if len(rows) > stored:
            kinds = (*kinds, "denoise")
        self.record.count(kinds)
        for row, reading in zip(rows[stored:], readings[stored:], strict=True):
            self._blocks.popleft()
            self._found += self._places(row, reading)
        if len(rows) > stored and not self._blocks:
            self._end("stop")
        return kinds

    def expire(self, reason: FinishReason) -> None:
        """Ends the request now, with what is known so far."""
        if self.finish_reason is None:
            self._end(reason)

    def fail(self, error: MrpServeError) -> None:
        """Ends the request with an error."""
        self._blocks.clear()
        super().fail(error)

    def _start_block(self, head: tuple[int, ...] = ()) -> None:
        """`head`: the prompt from the first block with a place on."""
        size, self._length = self._block_size, self._prompt_blocks * self._block_size + len(head)
        self._canvas, self._decoding = Canvas(Block(())), self.request.params.decode(Canvas(Block(())))
        self._found: list[tuple[int, Known]] = []
        last = max(place for place, token in enumerate(head) if token == MASKED) // size
        self._blocks = deque(
            self._block(head[number * size :][:size], self._prompt_blocks + number, last=number == last)
            for number in range(last + 1)
        )

    def _block(self, tokens: tuple[int, ...], index: int, *, last: bool) -> Row:
        """A row of a block. Positions behind the prompt are masked, as when an answer is decoded."""
        block = Block(tokens + (MASKED,) * (self._block_size - len(tokens)))
        sampling, asked = (None, None) if block.complete else (self.request.sampling, self.request.asked)
        return Row(block, index, self.lease.pages, writes_kv=not last, sampling=sampling, asked=asked)

    def _places(self, row: Row, reading: Reading) -> Iterator[tuple[int, Known]]:
        for pick in reading.picks:
            place = row.index * self._block_size + pick.position
            if place < self._length:
                yield place, pick.known or Known()

    def _end(self, reason: FinishReason) -> None:
        self._blocks.clear()
        self.finish_reason = reason
        self.record.tell(0, (), end=End(reason, found=tuple(self._found)))
