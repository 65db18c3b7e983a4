"""One running request: the rows that it needs next, and the handling of the readings that it gets.

A request prefills its prompt's whole blocks, then decodes block after block by its mode's policy. A finished block
(`unwritten`) is stored by a row in the same forward as the next block's first evaluation. Tensors occur only as opaque
handles.
"""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import Any

from service.decode.block import MASKED, Block, make
from service.decode.canvas import Canvas
from service.decode.guide import Grammar, Guide
from service.decode.policy import Decoding, Evaluate, Query, Reading, Refine
from service.decode.registry import only_drafts
from service.engine.drafting.pricing import Account
from service.engine.forward.rows import Row
from service.engine.prefix_cache import Lease, Tokens
from service.engine.record import End, Record
from service.engine.request import FinishReason, ForwardKind, GenerationRequest
from service.errors import MrpServeError

#: what a forward counts as for a request
_PREFILL: tuple[ForwardKind, ...] = ("prefill",)
_COMMIT: tuple[ForwardKind, ...] = ("commit",)
_DENOISE: tuple[ForwardKind, ...] = ("denoise",)
_VERIFY: tuple[ForwardKind, ...] = ("verify",)
_MRP: tuple[ForwardKind, ...] = ("mrp",)


def pages_needed(request: GenerationRequest, block_size: int) -> int:
    """The most KV pages that a request can use: its prompt and completion in whole blocks."""
    return -(-(len(request.prompt_token_ids) + request.max_new_tokens) // block_size)


class Sequence:
    """A running request. `lease`: pages for its whole length. Its shared pages, of the prompt, are already written.

    `account`: what its drafts may cost.
    `written`: the blocks written since then, in order, in all layers that the request needs.
    `record`: what is told of it.
    """

    def __init__(
        self, request: GenerationRequest, block_size: int, lease: Lease, submitted: float, account: Account
    ) -> None:
        self.request = request
        self.lease = lease
        self.submitted = submitted
        self._account = account
        self.record = Record(request, submitted, lease.num_shared * block_size, account.mrp_steps)
        self.written: deque[Tokens] = deque()
        self.finish_reason: FinishReason | None = None
        self._block_size = block_size
        self._entropy = request.params.rule.needs_entropy
        self._drafts = account.uses_mrp and only_drafts(request.params)
        self._num_output = 0
        self._num_blocks = 0
        self._unwritten: deque[Row] = deque()
        self._for_mrp: list[Row] = []
        self._grammar: Grammar | None = None
        self._masks: dict[Block, Any] = {}
        self._canvas: Canvas
        self._decoding: Decoding
        self._query: Query | None = None
        self._prefill()

    def start(self) -> None:
        """Opens the request's grammar and gets the first query of the block's policy. Both may raise."""
        request = self.request
        if request.grammar is not None:
            self._grammar = request.grammar.open()
            if request.num_continued:
                self._grammar.advance(request.prompt_token_ids[-request.num_continued :])
            self._canvas.guide = Guide(self._grammar, self._head)
            self._canvas.begin()
        self._follow(next(self._decoding, None))

    # --- the rows it needs -------------------------------------------------------------------------

    @property
    def num_prompt_rows(self) -> int:
        """The number of blocks of its prompt that are not stored yet."""
        return max(0, self._prompt_blocks - self._unwritten[0].index) if self._unwritten else 0

    def next_rows(self, budget: int, prompt_budget: int | None = None) -> list[Row]:
        """Rows for the next backbone forward: at most `budget`, and at most `prompt_budget` of the prompt.

        Blocks to store come first. The evaluation follows if all of it fits. Empty if nothing fits. The caller must
        call `accept` with as many readings.
        """
        if prompt_budget is not None and prompt_budget < self.num_prompt_rows:
            return list(islice(self._unwritten, min(budget, prompt_budget)))
        rows = list(islice(self._unwritten, budget)) if self._unwritten else []
        query = self._query
        if not isinstance(query, Evaluate) or len(rows) < len(self._unwritten):
            return rows
        if len(rows) + len(query.states) <= budget:
            rows += self._rows(query)
        return rows

    def gains(self, rows: list[Row]) -> list[float]:
        """The tokens that each of the last of these rows is expected to bring: those that may be left out."""
        query = self._query
        if not isinstance(query, Evaluate) or not query.promises or rows[-1].writes_kv:
            return []
        return self._account.gains(query.promises)

    def next_refinement(self) -> list[Row]:
        """Rows for the next MRP forward: finished blocks that MRP has not read, then the pending Refine."""
        if self.finish_reason is not None:
            return []
        if isinstance(self._query, Refine):
            return [*self._for_mrp, self._refined(self._query)]
        return list(self._for_mrp)

    # --- the readings it gets ----------------------------------------------------------------------

    def accept(self, rows: list[Row], readings: list[Reading]) -> tuple[ForwardKind, ...]:
        """Takes the backbone's readings of the rows of `next_rows`. Returns the kinds of forward that it counts."""
        stored = min(len(rows), len(self._unwritten))  # they come first
        for row, reading in zip(rows[:stored], readings, strict=False) if stored else ():
            self._unwritten.popleft()
            if self._account.uses_mrp:
                self._for_mrp.append(row._replace(anchor=reading.handle))
            else:
                self.written.append(row.state.tokens)
        evaluated = len(rows) - stored
        kinds = self._stored_kinds(rows[0], evaluated) if stored else ()
        if evaluated:
            kinds += _DENOISE if evaluated == 1 else _VERIFY
        self.record.count(kinds)
        if evaluated:
            self._answer(tuple(readings[stored:]))
        return kinds

    def accept_refinement(self, readings: list[Reading]) -> tuple[ForwardKind, ...]:
        """Takes MRP's readings of the rows of `next_refinement`. Returns the kinds of forward that it counts."""
        if self._for_mrp:
            self.written.extend(row.state.tokens for row in self._for_mrp)
            self._for_mrp.clear()
        self.record.count(_MRP)
        if isinstance(self._query, Refine):
            self._answer((readings[-1],))
        return _MRP

    def _stored_kinds(self, first: Row, evaluated: int) -> tuple[ForwardKind, ...]:
        """What rows to store, the first of which is given, count as beside so many evaluated ones."""
        if first.index < self._prompt_blocks:  # blocks are stored in their order
            return _PREFILL
        return () if evaluated else _COMMIT

    def expire(self, reason: FinishReason) -> None:
        """Ends the request now, unless it has already ended. Its last event has the tokens that are final."""
        if self.finish_reason is None:
            self._end_block(reason)

    def fail(self, error: MrpServeError) -> None:
        """Ends the request with an error. Its current block and its unshared pages are lost."""
        self._decoding.close()
        self._query = None
        self._masks.clear()
        self.written.clear()
        self.finish_reason = "abort"
        self.record.tell(self._num_blocks, (), end=End("abort", error=error))

    def release(self) -> None:
        """Lets go of what refers to it, after its end: else only a garbage collection would free it."""
        del self._canvas, self._decoding

    # --- decoding ----------------------------------------------------------------------------------

    def _prefill(self) -> None:
        blocks, prompt = self.lease.prefix.blocks, self.request.prompt_token_ids
        self._prompt_blocks = len(blocks)
        for index in range(self.lease.num_shared, len(blocks)):
            self._store(Block(blocks[index]), index)
        self._start_block(prompt[len(blocks) * self._block_size :])

    def _start_block(self, head: tuple[int, ...] = ()) -> None:
        self._head = self._leading = len(head)  # tokens before `_leading` are final, and the answer does not end there
        self._account.pages = self._prompt_blocks + self._num_blocks
        self._canvas = Canvas(
            Block(head + (MASKED,) * (self._block_size - len(head))), budget=self._account.budget, ends=self._settled
        )
        self._num_noted = 0
        if self._grammar is not None:
            self._canvas.guide = Guide(self._grammar, self._head)
            self._canvas.begin()
        self._decoding = self.request.params.decode(self._canvas)

    def _answer(self, readings: tuple[Reading, ...]) -> None:
        """Sends readings to the policy. Ends the block when it is complete or the answer ends in it."""
        asked = isinstance(self._query, Evaluate)
        query: Query | None
        try:
            query = self._decoding.send(readings)
        except StopIteration:
            query = None
        evaluated = len(readings) if asked else 0
        self._note(evaluated)
        self._follow(query)

    def _follow(self, query: Query | None) -> None:
        """Goes on to a query of the policy. A complete block has none; then comes the first of the next block."""
        while query is None:
            self._end_block(None)
            if self.finish_reason is not None:
                return
            block = self._canvas.block
            self._store(block, self._prompt_blocks + self._num_blocks - 1)
            if self._grammar is not None:
                self._grammar.advance(block.tokens[self._head :])
            self._start_block()
            query = next(self._decoding, None)
        self._query = query
        if isinstance(query, Evaluate):
            block = self._canvas.block  # final where a policy evaluates
            if self._settled(block):
                self._end_block(None)
                return
            self._leading = block.tokens.index(MASKED)
        if (guide := self._canvas.guide) is not None:
            states = query.states if isinstance(query, Evaluate) else (query.state,)
            self._masks = {state: guide.mask(state) for state in states}

    def _note(self, evaluated: int) -> None:
        """Notes the steps that the last readings led to. `evaluated`: the number of states that were read."""
        first, steps = self._num_noted, self._canvas.steps
        if not evaluated and first == len(steps):
            return
        self._num_noted = len(steps)
        fresh = steps[first:]
        self._account.note(evaluated, fresh)
        if self.request.report_steps and fresh:
            self.record.proceed(self._num_blocks, first, fresh)

    def _new_tokens(self, block: Block) -> tuple[tuple[int, ...], FinishReason | None]:
        """The tokens of a state of the block that belong to the completion, and the finish reason if it ends there."""
        leading = block.tokens[self._head : block.num_leading]
        room = self.request.max_new_tokens - self._num_output
        for count, token in enumerate(leading[:room]):
            if token in self.request.stop_token_ids:
                return leading[:count], "stop"
        return leading[:room], "length" if len(leading) >= room else None

    def _settled(self, block: Block) -> bool:
        """Whether the answer ends in this state, which follows the canvas's. Asked for every state that is drafted."""
        tokens, leading = block.tokens, self._leading
        if tokens[leading] == MASKED:
            return False
        if MASKED not in tokens:
            return True
        end = tokens.index(MASKED)
        if end - self._head >= self.request.max_new_tokens - self._num_output:
            return True
        return not self.request.stop_token_ids.isdisjoint(tokens[leading:end])

    def _end_block(self, expired: FinishReason | None) -> None:
        if self._num_noted < len(self._canvas.steps):
            self._note(0)
        tokens, reason = self._new_tokens(self._canvas.block)
        self._decoding.close()
        self._query = None
        self._num_blocks += 1
        self._num_output += len(tokens)
        self.record.decoded_tokens += len(tokens) + (reason == "stop")
        self.finish_reason = reason = reason or expired
        met = None if reason is None or self._grammar is None else self._grammar.complete(tokens)
        self.record.tell(self._num_blocks - 1, tokens, self._canvas.steps, End(reason, met))

    # --- rows --------------------------------------------------------------------------------------

    def _rows(self, query: Evaluate) -> list[Row]:
        """The rows that read the states of a query."""
        index, pages, masks = self._prompt_blocks + self._num_blocks, self.lease.pages, self._masks
        request = self.request
        asked = request.asked_at_least(query.likeliest) if query.likeliest else request.asked
        sampling, entropy, drafts = request.sampling, self._entropy, self._drafts
        return [
            make(
                Row,
                (
                    state, index, pages, False, sampling, (), None, entropy, drafts,
                    masks.get(state) if masks else None, asked,
                ),
            )
            for state in query.states
        ]  # fmt: skip

    def _refined(self, query: Refine) -> Row:
        """The row by which MRP answers a query, anchored on an earlier reading."""
        state, after = query.state, query.after
        return Row(
            state, self._prompt_blocks + self._num_blocks, self.lease.pages, False, self.request.sampling,
            query.judge, after.handle, self._entropy, self._drafts, self._masks.get(state),
            None if self._drafts else self.request.asked,
        )  # fmt: skip

    def _store(self, block: Block, index: int) -> None:
        self._unwritten.append(Row(block, index, self.lease.pages, writes_kv=True))
