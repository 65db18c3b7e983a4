"""One running request: the rows that it needs next, and its reaction to their predictions.

A finished block (`unwritten`) is stored by a row in the same forward as the next block's first evaluation. Tensors
occur only as opaque handles.
"""

from collections import deque
from itertools import islice
from typing import Any

from service.decode.block import MASKED, Block, new_tuple
from service.decode.canvas import BlockGrammar, Canvas, GrammarMatcher
from service.decode.policy import Decoding, Evaluate, Prediction, Query, Refine
from service.decode.registry import only_drafts
from service.engine.drafting.planner import RequestDrafts
from service.engine.forward.rows import Row
from service.engine.logit_adjuster import LogitAdjuster
from service.engine.prefix_cache import BlockTokens, Lease
from service.engine.request import FinishReason, ForwardKind, GenerationRequest
from service.engine.request_stats import EventEnd, RequestStats
from service.errors import MrpServeError


class RunningRequest:
    """A running request."""

    def __init__(
        self, request: GenerationRequest, block_size: int, lease: Lease, submitted: float, drafts: RequestDrafts
    ) -> None:
        self.request, self.submitted, self._block_size, self._drafts = request, submitted, block_size, drafts
        self.lease = lease  # the pages for its whole length; the shared pages of its prompt are already written
        self.stats = RequestStats(request, submitted, lease.num_shared * block_size, drafts.mrp_steps)
        self.finish_reason: FinishReason | None = None
        self._needs_entropy = request.mode.rule.needs_entropy
        self._only_drafts = drafts.uses_mrp and only_drafts(request.mode)  # whether MRP's picks are drafts only
        head = len(request.prompt_token_ids) % block_size
        self._adjuster = LogitAdjuster(request, head) if request.sampling.adjusts_logits else None
        self._draft_vocabulary = self._only_drafts and self._adjuster is None  # draft candidates are not adjusted

        # finished blocks, the prompt's whole blocks first: not stored yet, then stored but not read by MRP, then done
        self._unwritten: deque[Row] = deque()
        self._for_mrp: list[Row] = []
        self.written: deque[BlockTokens] = deque()  # since the last publication
        blocks = lease.prefix.blocks
        self._prompt_blocks, self._num_blocks = (
            len(blocks),
            0,
        )  # the prompt's whole blocks, the finished ones after them

        # the block that is decoded
        self._canvas: Canvas
        self._decoding: Decoding  # the policy's generator
        self._query: Query | None = None  # its present query
        self._matcher: GrammarMatcher | None = None
        self._masks: dict[Block, Any] = {}  # the grammar's token masks of the query's states
        for index in range(lease.num_shared, len(blocks)):
            self._store(Block(blocks[index]), index)
        self._start_block(request.prompt_token_ids[len(blocks) * block_size :])

    def start(self) -> None:
        request = self.request
        if request.grammar is not None:
            self._matcher = request.grammar.open()
            if request.num_continued:
                self._matcher.advance(request.prompt_token_ids[-request.num_continued :])
            self._canvas.grammar = BlockGrammar(self._matcher, self._head)
            self._canvas.begin()
        self._continue(next(self._decoding, None))

    @property
    def num_prompt_rows(self) -> int:
        return max(0, self._prompt_blocks - self._unwritten[0].index) if self._unwritten else 0

    @property
    def stores_next(self) -> bool:
        return bool(self._unwritten) and self._unwritten[0].index == self.lease.num_shared

    def skip_stored(self, count: int) -> None:
        for _ in range(count):
            self._unwritten.popleft()
        self.stats.cached_tokens += count * self._block_size

    @property
    def num_pages(self) -> int:
        return self._drafts.pages

    @property
    def num_rows(self) -> int:
        return len(self._unwritten) + (len(self._query.states) if isinstance(self._query, Evaluate) else 0)

    def next_rows(self, budget: int, prompt_budget: int | None = None) -> list[Row]:
        """Rows for the next backbone forward: at most `budget`, and at most `prompt_budget` of the prompt.

        Blocks to store come first. The evaluation follows if all of it fits. The caller must call
        `receive_predictions`.
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

    def expected_gains(self, rows: list[Row]) -> list[float]:
        """The expected gains, in tokens, of the drafts, which are the last of these rows and may be left out."""
        query = self._query
        if not isinstance(query, Evaluate) or not query.gains or rows[-1].writes_kv:
            return []
        return self._drafts.expected_gains(query.gains)

    def next_refinement(self) -> list[Row]:
        if self.finish_reason is not None:
            return []
        if isinstance(self._query, Refine):
            return [*self._for_mrp, self._refined(self._query)]
        return list(self._for_mrp)

    def receive_predictions(self, rows: list[Row], predictions: list[Prediction]) -> tuple[ForwardKind, ...]:
        stored = min(len(rows), len(self._unwritten))  # they come first
        for row, prediction in zip(rows[:stored], predictions, strict=False) if stored else ():
            self._unwritten.popleft()
            if self._drafts.uses_mrp:
                self._for_mrp.append(row._replace(anchor=prediction.handle))
            else:
                self.written.append(row.state.tokens)
        evaluated = len(rows) - stored
        kinds: tuple[ForwardKind, ...] = ()
        if stored and rows[0].index < self._prompt_blocks:  # blocks are stored in their order
            kinds = ("prefill",)
        elif not evaluated:
            kinds = ("commit",)
        if evaluated:
            kind: ForwardKind = "denoise" if evaluated == 1 else "verify"
            kinds = (*kinds, kind) if kinds else (kind,)
        self.stats.count(kinds)
        if evaluated:
            self._send(tuple(predictions[stored:]))
        return kinds

    def receive_refinement(self, predictions: list[Prediction]) -> tuple[ForwardKind, ...]:
        if self._for_mrp:
            self.written.extend(row.state.tokens for row in self._for_mrp)
            self._for_mrp.clear()
        self.stats.count(("mrp",))
        if isinstance(self._query, Refine):
            self._drafts.refinements += 1
            self._send((predictions[-1],))
        return ("mrp",)

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
        self.stats.add_event(self._num_blocks, (), end=EventEnd("abort", error=error))

    def release(self) -> None:
        """Drops its reference cycles after its end. Without this only a garbage collection would free it."""
        del self._canvas, self._decoding

    def _start_block(self, head: tuple[int, ...] = ()) -> None:
        self._head = len(head)
        self._leading = len(head)  # tokens before this position are final, and the answer does not end there
        self._drafts.pages = self._prompt_blocks + self._num_blocks
        self._canvas = Canvas(
            Block(head + (MASKED,) * (self._block_size - len(head))), budget=self._drafts.budget, ends=self._settled
        )
        self._num_recorded = 0  # the canvas's steps that are recorded
        if self._adjuster is not None:
            self._canvas.without_bad_words = self._adjuster.without_bad_words
        if self._matcher is not None:
            self._canvas.grammar = BlockGrammar(self._matcher, self._head)
            self._canvas.begin()
        self._decoding = self.request.mode.decode(self._canvas)

    def _send(self, predictions: tuple[Prediction, ...]) -> None:
        evaluated = len(predictions) if isinstance(self._query, Evaluate) else 0
        query: Query | None
        try:
            query = self._decoding.send(predictions)
        except StopIteration:
            query = None
        self._record_steps(evaluated)
        self._continue(query)

    def _continue(self, query: Query | None) -> None:
        """Continues with a query. None: the block is complete, and the next block's first query follows."""
        while query is None:
            self._end_block(None)
            if self.finish_reason is not None:
                return
            block = self._canvas.block
            self._store(block, self._prompt_blocks + self._num_blocks - 1)
            if self._matcher is not None:
                self._matcher.advance(block.tokens[self._head :])
            if self._adjuster is not None:
                self._adjuster.advance(block.tokens[self._head :])
            self._start_block()
            query = next(self._decoding, None)
        self._query = query
        if isinstance(query, Evaluate):
            block = self._canvas.block  # final where a policy evaluates
            if self._settled(block):
                self._end_block(None)
                return
            self._leading = block.tokens.index(MASKED)
        if (grammar := self._canvas.grammar) is not None:
            states = query.states if isinstance(query, Evaluate) else (query.state,)
            self._masks = {state: grammar.mask(state) for state in states}

    def _record_steps(self, evaluated: int) -> None:
        first, steps = self._num_recorded, self._canvas.steps
        if not evaluated and first == len(steps):
            return
        self._num_recorded = len(steps)
        new_steps = steps[first:]
        self._drafts.record(evaluated, new_steps)
        if self.request.report_steps and new_steps:
            self.stats.add_progress(self._num_blocks, first, new_steps)

    def _new_tokens(self, block: Block) -> tuple[tuple[int, ...], FinishReason | None]:
        """The tokens of a state of the block that belong to the completion, and the finish reason if it ends there."""
        leading = block.tokens[self._head : block.num_leading]
        remaining = self.request.max_new_tokens - self.stats.decoded_tokens
        for count, token in enumerate(leading[:remaining]):
            if token in self.request.stop_token_ids:
                return leading[:count], "stop"
        return leading[:remaining], "length" if len(leading) >= remaining else None

    def _settled(self, block: Block) -> bool:
        """Whether the answer ends in this state, a later one than the canvas's. Called for every drafted state."""
        tokens, leading = block.tokens, self._leading
        if tokens[leading] == MASKED:
            return False
        if MASKED not in tokens:
            return True
        end = tokens.index(MASKED)
        if end - self._head >= self.request.max_new_tokens - self.stats.decoded_tokens:
            return True
        return not self.request.stop_token_ids.isdisjoint(tokens[leading:end])

    def _end_block(self, expired: FinishReason | None) -> None:
        if self._num_recorded < len(self._canvas.steps):
            self._record_steps(0)
        tokens, reason = self._new_tokens(self._canvas.block)
        self._decoding.close()
        self._query = None
        self._num_blocks += 1
        self.stats.decoded_tokens += len(tokens) + (reason == "stop")
        self.finish_reason = reason = reason or expired
        met = None if reason is None or self._matcher is None else self._matcher.complete(tokens)
        self.stats.add_event(self._num_blocks - 1, tokens, self._canvas.steps, EventEnd(reason, met))

    def _rows(self, query: Evaluate) -> list[Row]:
        index, pages, masks = self._prompt_blocks + self._num_blocks, self.lease.pages, self._masks
        request = self.request
        logprobs = request.logprobs_with(query.top_logprobs) if query.top_logprobs else request.logprobs
        sampling, entropy = request.sampling, self._needs_entropy
        drafts, adjuster = self._draft_vocabulary, self._adjuster
        # a call of Row by keywords takes three times as long, and a step has a row for every state
        return [
            new_tuple(Row, (
                state, index, pages, False, sampling, (), None, entropy, drafts,
                masks.get(state) if masks else None, logprobs,
                adjuster.adjustments(state, masks.get(state)) if adjuster else (),
            ))
            for state in query.states
        ]  # fmt: skip

    def _refined(self, query: Refine) -> Row:
        state, mask, adjuster = query.state, self._masks.get(query.state), self._adjuster
        return Row(
            state,
            self._prompt_blocks + self._num_blocks,
            self.lease.pages,
            writes_kv=False,
            sampling=self.request.sampling,
            rescore=query.rescore,
            anchor=query.after.handle,
            entropy=self._needs_entropy,
            drafts=self._draft_vocabulary,
            mask=mask,
            logprobs=None if self._only_drafts else self.request.logprobs,
            adjustments=adjuster.adjustments(state, mask, query.rescore) if adjuster else (),
        )

    def _store(self, block: Block, index: int) -> None:
        self._unwritten.append(Row(block, index, self.lease.pages, writes_kv=True))
