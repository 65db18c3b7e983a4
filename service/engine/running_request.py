"""One running request: the rows that it needs next, and its reaction to their predictions.

A finished block is stored by a row in the same forward as the next block's first evaluation (`stored_blocks.py`).
Where outputs are shifted, that row reads the next block's first position, and the evaluation follows (`_with_first`).
Tensors occur only as opaque handles.

A mode with a `pace` may go *ahead*: its next rows are named before the last ones' predictions are read, since only
their tokens are unknown, and these stay on the device (`forward/row_states.py`). The policy sees the predictions later,
in their order, and it alone makes events, steps and statistics. Where the answer ends earlier, a row that was begun
ahead is dropped.
"""

from collections.abc import Iterable, Sequence
from itertools import islice
from math import isfinite
from typing import Any, NamedTuple, cast

from msgspec import Struct
from msgspec.structs import replace

from service.decode.block import MASKED, Block
from service.decode.canvas import BlockGrammar, Canvas, DraftBudget, EditTokens, GrammarMatcher
from service.decode.first_token import decode_after_first
from service.decode.mode import Pace
from service.decode.policy import Decoding, Evaluate, Prediction, Query, Refine
from service.decode.registry import only_drafts
from service.engine.drafting.planner import RequestDrafts
from service.engine.forward.rows import Anchor, Row
from service.engine.logit_adjuster import LogitAdjuster
from service.engine.prefix_cache import Lease
from service.engine.request import BlockEvent, FinishReason, ForwardKind, GenerationRequest, Stats
from service.engine.request_stats import RequestStats
from service.engine.stored_blocks import StoredBlocks, unknown_state
from service.errors import MrpServeError, OutputsNotFinite
from service.model.config import ModelConfig


class Ahead(Struct, frozen=True, gc=False):
    """The next row that a request can name. `masked`: the number of its state's masked positions, at most."""

    index: int
    masked: int
    after: Anchor | None  # the row that leads to its state; None: nothing of the block is revealed
    num_refined: int = 0  # the most forwards of MRP before the backbone's next one
    uncertain: bool = False  # whether the state may be complete. Then the next block's first row follows at once.


class Uncertain(NamedTuple):
    """The last rows that have begun, where the first one's state may be complete. A second one is the next block's."""

    rows: list[Row]
    anchors: Sequence[Anchor | None]
    num_refined: int  # as of `Ahead`


class RunningRequest:
    """A running request."""

    # an object of more than 30 attributes has a dict of its own, which is slower by a tenth of a step's host time
    __slots__ = (
        "_adjuster", "_ahead", "_block_size", "_canvas", "_chained", "_chains_drafts", "_decoding", "_draft_masks",
        "_draft_vocabulary", "_edit_tokens", "_follows", "_gate", "_head", "_leading", "_masks", "_matcher",
        "_num_blocks", "_num_recorded", "_num_unread", "_only_drafts", "_prompt_blocks", "_query", "_row", "_rule",
        "_shifted", "_sub_block", "_uncertain", "blocks", "chains", "drafts", "finish_reason", "lease", "pace",
        "request", "stats", "submitted",
    )  # fmt: skip

    def __init__(
        self, request: GenerationRequest, model: ModelConfig, lease: Lease, submitted: float, drafts: RequestDrafts
    ) -> None:
        self.request, self.submitted, self.drafts = request, submitted, drafts
        block_size = self._block_size = model.block_size
        self._sub_block, self._draft_masks, self._shifted = model.sub_block_size, model.draft_masks, model.shifted
        self.lease = lease  # the pages for its whole length; the shared pages of its prompt are already written
        self.stats = RequestStats(request, submitted, lease.num_shared * block_size, drafts.mrp_steps)
        self.finish_reason: FinishReason | None = None
        self._rule = request.mode.rule.in_order if model.causal else request.mode.rule
        self._edit_tokens: EditTokens | None = None  # those that the policy may get
        self._gate = self._rule  # the rule of MRP's rows ahead
        self._only_drafts = drafts.uses_mrp and only_drafts(request.mode)  # whether MRP's picks are drafts only
        head = len(request.prompt_token_ids) % block_size
        self._adjuster = LogitAdjuster(request, head) if request.sampling.adjusts_logits else None
        moves = request.mode.moves_tokens and request.grammar is None
        if moves and model.edit_token_ids and not (self._adjuster and self._adjuster.knows_places):
            self._edit_tokens = EditTokens(*model.edit_token_ids)
        self._draft_vocabulary = self._only_drafts and self._adjuster is None  # draft candidates are not adjusted

        self.blocks = StoredBlocks(lease, uses_mrp=drafts.uses_mrp)  # finished blocks
        prompt = lease.prefix.blocks
        self._prompt_blocks, self._num_blocks = len(prompt), 0  # the prompt's whole blocks, the finished ones after

        # the block that is decoded
        self._canvas: Canvas
        self._decoding: Decoding  # the policy's generator
        self._query: Query | None = None  # its present query
        self._matcher: GrammarMatcher | None = None
        self._masks: dict[Block, Any] = {}  # the grammar's token masks of the query's states

        # what has begun: evaluations and refinements that are not read, and the row after the last of them
        self._num_unread = 0
        self.pace: Pace | None = None  # None: no row begins before the predictions of earlier ones are read
        self._ahead: Ahead | None = None
        self._uncertain: Uncertain | None = None
        self.chains = self._chains_drafts = False  # whether MRP's forwards may be a chain, and whether of drafts
        self._chained: tuple[Row, Anchor] | None = None  # the last one of a chain of drafts that has begun
        self._follows = False  # whether the query is about the state after the picks of the last one that was read
        self._row = Row(  # of the block's states, without them
            Block(()),
            self._prompt_blocks,
            lease.pages,
            writes_kv=False,
            sampling=request.sampling,
            entropy=self._rule.needs_entropy,
            drafts=self._draft_vocabulary,
            logprobs=request.logprobs,
            unsampled=() if self._edit_tokens else model.edit_token_ids or (),
        )
        for index in range(lease.num_shared, len(prompt)):
            self.blocks.add(Block(prompt[index]), index)
        self._start_block(request.prompt_token_ids[len(prompt) * block_size :])

    def allow_ahead(self, allowed: bool) -> None:
        """Whether rows may be named before the predictions of earlier ones are read, where nothing else forbids it."""
        request = self.request
        filtered, pace = request.sampling.draws_filtered, request.mode.pace
        allowed = allowed and self._rule.device_picks is not None
        if allowed and request.grammar is None and self._adjuster is None and request.logprobs is None:
            in_turns = pace is not None and not pace.is_fixed and (self._shifted or (filtered and pace.mrp_steps > 0))
            self.pace = None if in_turns else pace
            self._gate = (self.pace and self.pace.gate) or self._rule
        drafts = self._draft_vocabulary and request.grammar is None
        refines = self.pace is not None and self.pace.mrp_steps > 0 and not filtered
        self._chains_drafts = allowed and not self._shifted and drafts
        self.chains = self._chains_drafts or (refines and not self._shifted)

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
    def _index(self) -> int:
        """The index of the block that is decoded."""
        return self._prompt_blocks + self._num_blocks

    @property
    def num_prompt_rows(self) -> int:
        unwritten = self.blocks.unwritten
        return max(0, self._prompt_blocks - unwritten[0].index) if unwritten else 0

    @property
    def stores_next(self) -> bool:
        unwritten = self.blocks.unwritten
        return bool(unwritten) and unwritten[0].index == self.lease.num_shared

    def skip_stored(self, count: int) -> None:
        self.blocks.skip(count)
        self.stats.cached_tokens += count * self._block_size

    @property
    def num_rows(self) -> int:
        unwritten = len(self.blocks.unwritten)
        if self._shifted and unwritten and self._reads_first:
            return unwritten
        if self._num_unread:
            return unwritten + (0 if self.waits or self._ahead is None else 1 + self._ahead.uncertain)
        return unwritten + (len(self._query.states) if isinstance(self._query, Evaluate) else 0)

    @property
    def _reads_first(self) -> bool:
        """Whether the first position is read next, by a row of the block before."""
        query, ahead = self._query, self._ahead
        if self._num_unread:
            return ahead is not None and ahead.after is None
        return isinstance(query, Evaluate) and query.states[0].tokens[0] == MASKED

    @property
    def waits(self) -> bool:
        """Whether its next rows depend on predictions that are not read."""
        return self._num_unread > 0 and (self._ahead is None or not self._may_go_ahead)

    @property
    def _may_go_ahead(self) -> bool:
        """Whether the next rows are worth naming: no drafts are to be read, and a second row for each request is free.

        Where the prediction decides the number of picks, a block may be complete, so the next block's row goes along.
        """
        if self.pace is None or self.drafts.drafts_next():
            return False
        return self.pace.is_fixed or self.drafts.planner.rows_are_free()

    def next_rows(self, budget: int, prompt_budget: int | None = None) -> list[Row]:
        """Rows for the next backbone forward: at most `budget`, and at most `prompt_budget` of the prompt.

        Blocks to store come first. The evaluation follows if all of it fits. The caller must call
        `receive_predictions`.
        """
        rows: list[Row] = []  # the call `list[Row]()` takes a third of a microsecond
        if unwritten := self.blocks.unwritten:
            if prompt_budget is not None and prompt_budget < self.num_prompt_rows:
                return list(islice(unwritten, min(budget, prompt_budget)))
            rows += islice(unwritten, budget)
            if len(rows) < len(unwritten):
                return rows
        query = self._query
        if self._shifted and self._reads_first:
            return self._with_first(rows, budget)
        if self._num_unread:
            if self._ahead is not None and len(rows) + 1 + self._ahead.uncertain <= budget:
                rows += self._rows_ahead(self._ahead)
        elif isinstance(query, Evaluate) and len(rows) + len(query.states) <= budget:
            rows += self._rows(query)
        return rows

    def expected_gains(self, rows: list[Row]) -> list[float]:
        """The expected gains, in tokens, of the drafts, which are the last of these rows and may be left out."""
        query = self._query
        if self._num_unread or not isinstance(query, Evaluate) or not query.gains or rows[-1].writes_kv:
            return []
        return self.drafts.expected_gains(query.gains)

    def next_refinement_ahead(self) -> list[Row]:
        """Rows for the next forward of MRP in this step, before the last forward is read."""
        if self._chained is not None and isinstance(self._query, Refine):
            return self._next_drafting(*self._chained)
        if self._uncertain is not None:
            return self._refined_uncertain(self._uncertain)
        ahead = self._ahead
        if ahead is None or (self.waits and not ahead.num_refined):
            return []
        return [*self.blocks.for_mrp, *(self._rows_ahead(ahead) if ahead.num_refined else ())]

    def next_refinement(self) -> list[Row]:
        """Rows for the next forward of MRP in this step. The caller must call `receive_refinement`."""
        if self.finish_reason is not None or self._num_unread:
            return []
        if isinstance(self._query, Refine):
            return [*self.blocks.for_mrp, self._refined(self._query)]
        return list(self.blocks.for_mrp)

    @property
    def num_chained(self) -> int:
        """The forwards of MRP that may follow the next one before it is read."""
        query = self._query
        if self._chains_drafts:
            return self.drafts.num_chained(query.ahead) if isinstance(query, Refine) else 0
        named = self._uncertain or self._ahead
        return 0 if named is None else max(0, named.num_refined - 1)

    def waits_without_chain(self) -> bool:
        """The device has no chain. -> whether MRP's next forward then waits for the results of the last one."""
        if self.pace is None or self.pace.gate is None or not self._num_unread:
            return False
        self._ahead = None
        return True

    def begin(self, rows: list[Row], anchors: Sequence[Anchor | None]) -> None:
        """A forward over these rows has begun. `anchors`: theirs, None for a row without memory."""
        if self.pace is None and not rows[0].writes_kv and not self._chains_drafts:  # the usual case in turns
            self._num_unread += 1
            return
        stored = self.blocks.begin(rows, anchors)
        if rows[-1].sampling is None:
            return
        self._num_unread += 1
        before, self._ahead = self._ahead, None
        if self._chains_drafts and rows[-1].anchor is not None:
            self._chained = None if anchors[-1] is None else (rows[-1], anchors[-1])
            return
        if self.pace is None or rows[-1].opens_next:
            return
        row, named = rows[stored], self._uncertain or before
        num_refined = self.pace.mrp_steps if row.anchor is None or named is None else named.num_refined - 1
        if row.writes_kv:
            self._uncertain = Uncertain(rows[stored:], anchors[stored:], num_refined)
            self.blocks.expect(row.index)
        elif row.rule is not None:
            left = self._left(row.state.tokens.count(MASKED), refined=row.anchor is not None)
            self._ahead = self._after(row, anchors[stored], left, num_refined)

    def _left(self, masked: int, *, refined: bool) -> int:
        """The masked positions that a forward leaves at most, MRP's if `refined`."""
        if self.pace is None or (refined and self.pace.gate is not None):
            return masked
        picks = self.pace.picks or 1
        if self._sub_block is not None:
            picks = min(picks, (masked - 1) % self._sub_block + 1)  # the sub-blocks to the right are masks only
        if self._draft_masks is not None:
            picks = min(picks, 1 + self._draft_masks)
        return max(0, masked - picks)

    def _after(self, row: Row, anchor: Anchor | None, left: int, num_refined: int) -> Ahead | None:
        """The row after one that has begun. `left`: its masked positions, at most. `num_refined`: as of `Ahead`."""
        if self.pace is None or self.blocks.has_failed:
            return None
        if left:
            uncertain = self.pace.picks is None or (self.pace.gate is not None and row.anchor is not None)
            return Ahead(row.index, left, anchor, min(num_refined, left), uncertain)
        if row.index + 1 == len(self.lease.pages):
            return None
        self.blocks.add_ahead(row.index, anchor, self._block_size)
        return Ahead(row.index + 1, self._block_size, None)

    def _settle_uncertain(self, rows: list[Row], anchors: Sequence[Anchor | None], num_refined: int) -> None:
        """The last rows that have begun: now it is known whether the first of them had a complete state."""
        self._uncertain = None
        if self.finish_reason is not None:
            return
        (row, *following), complete = rows, self._index > rows[0].index
        self.blocks.settle(row, anchors[0], complete=complete)
        if num_refined:  # MRP waits for the results
            return
        if not complete:
            left = self._left(len(self._canvas.block.masked), refined=False)
            self._ahead = self._after(row, anchors[0], left, 0)
        elif following:
            self._ahead = self._after(following[0], anchors[1], self._left(self._block_size, refined=False), 0)

    def receive_predictions(self, rows: list[Row], predictions: list[Prediction]) -> tuple[ForwardKind, ...]:
        if rows[-1].opens_next:
            kind: ForwardKind = "prefill" if rows[0].index < self._prompt_blocks else "commit"
            self.stats.count((kind,))
            self._num_unread -= 1
            self._send((replace(predictions[-1], positions=(0,)),))
            return (kind,)
        if len(rows) == 1 and not rows[0].writes_kv:  # the usual case
            self.stats.count(("denoise",))
            self._receive_evaluation(rows[0], predictions)
            return ("denoise",)
        stored = sum([row.writes_kv for row in rows])  # they come first
        is_uncertain = stored > 0 and rows[stored - 1].sampling is not None
        if is_uncertain and self._index == rows[stored - 1].index:  # its state is not complete
            stored -= 1
            rows, predictions = rows[: stored + 1], predictions[: stored + 1]
        evaluated = len(rows) - stored
        kinds: tuple[ForwardKind, ...] = ()
        if stored and rows[0].index < self._prompt_blocks:  # blocks are stored in their order
            kinds = ("prefill",)
        elif not evaluated:
            kinds = ("commit",)
        if evaluated:
            kind = "denoise" if evaluated == 1 else "verify"
            kinds = (*kinds, kind) if kinds else (kind,)
        self.stats.count(kinds)
        if evaluated:
            self._receive_evaluation(rows[stored], predictions[stored:])
        elif is_uncertain:
            self._num_unread -= 1
        return kinds

    def _receive_evaluation(self, row: Row, predictions: list[Prediction]) -> None:
        """`row`: the first of the evaluated rows."""
        self._num_unread -= 1
        if row.after is not None:
            predictions = [_of_state(predictions[0], self._canvas.block)]
        self._send(tuple(predictions))
        if self._uncertain is not None and not isinstance(self._query, Refine):
            self._settle_uncertain(*self._uncertain)

    def receive_refinement(self, rows: list[Row], predictions: list[Prediction]) -> tuple[ForwardKind, ...]:
        """Predictions for which the policy does not ask are dropped: ahead, only the device knew what it would ask."""
        self.stats.count(("mrp",))
        if rows[-1].sampling is None:
            return ("mrp",)
        self._num_unread -= 1
        self.drafts.refinements += 1
        if self.pace is None and not self._chains_drafts:  # the usual case in turns
            self._send((predictions[-1],))
            return ("mrp",)
        query = self._query
        for row, prediction in zip(rows, predictions, strict=True):
            if isinstance(query, Refine) and row.anchor == query.after.handle:
                self._receive_refined(row, prediction, query)
                break
        return ("mrp",)

    def _receive_refined(self, row: Row, prediction: Prediction, query: Refine) -> None:
        if row.after is not None:
            if self._chains_drafts and not self._follows:
                return
            prediction = _of_state(prediction, query.state)
        following = query.state.reveal(self._rule(prediction)) if self._chains_drafts else None
        self._send((prediction,))
        if following is not None:
            search = self._query
            self._follows = (
                isinstance(search, Refine) and search.after.handle == prediction.handle and search.state == following
            )
            self.drafts.followed += self._follows
        if self._uncertain is not None and not isinstance(self._query, Refine):
            self._settle_uncertain(*self._uncertain)

    def expire(self, reason: FinishReason) -> None:
        """Ends the request now, unless it has already ended. Its last event has the tokens that are final."""
        if self.finish_reason is None:
            self._end_block(reason)

    def fail(self, error: MrpServeError) -> None:
        """Ends the request with an error. Its current block and its unshared pages are lost."""
        self._decoding.close()
        self._query = None
        self._masks.clear()
        self.blocks.clear()
        self.finish_reason = "abort"
        event = BlockEvent(self.request.request_id, self._num_blocks, (), Stats(), "abort", error=error)
        self.stats.add_event(event)

    def release(self) -> None:
        """Drops its reference cycles after its end. Without this only a garbage collection would free it."""
        del self._canvas, self._decoding

    def _start_block(self, head: tuple[int, ...] = ()) -> None:
        self._head = len(head)
        self._leading = len(head)  # tokens before this position are final, and the answer does not end there
        self.drafts.pages = self._index
        self._row = replace(self._row, index=self._index)
        self._canvas = Canvas(
            Block(head + (MASKED,) * (self._block_size - len(head))),
            budget=self._budget,
            ends=self._settled,
            edit_tokens=self._edit_tokens,
        )
        self._canvas.in_order = self._draft_masks is not None
        self._num_recorded = 0  # the canvas's steps that are recorded
        if self._adjuster is not None:
            self._canvas.without_bad_words = self._adjuster.without_bad_words
        if self._matcher is not None:
            self._canvas.grammar = BlockGrammar(self._matcher, self._head)
            self._canvas.begin()
        mode = self.request.mode
        self._decoding = decode_after_first(mode, self._canvas) if self._shifted else mode.decode(self._canvas)

    def _budget(self) -> DraftBudget:
        """The budget of drafts in the next forward: nothing if it has already begun."""
        return DraftBudget() if self._num_unread else self.drafts.budget()

    def _send(self, predictions: tuple[Prediction, ...]) -> None:
        check_finite(predictions)
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
            self.blocks.add(block, self._index - 1)
            if self._matcher is not None:
                self._matcher.advance(block.tokens[self._head :])
            if self._adjuster is not None:
                self._adjuster.advance(block.tokens[self._head :])
            self._start_block()
            query = next(self._decoding, None)
        self._query = query
        if isinstance(query, Evaluate) and not query.edit:
            block = self._canvas.block  # final where a policy evaluates, unless it edits
            if block.tokens[self._leading] != MASKED:
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
        self.drafts.record(evaluated, new_steps, ahead=self._num_unread > 0)
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
        block = self._canvas.block
        if expired is not None and isinstance(self._query, Evaluate):
            block = block.remask(self._query.edit)
        tokens, reason = self._new_tokens(block)
        self._decoding.close()
        self._query = None
        self._num_blocks += 1
        self.stats.decoded_tokens += len(tokens) + (reason == "stop")
        self.finish_reason = reason = reason or expired
        met = None if reason is None or self._matcher is None else self._matcher.complete(tokens)
        event = BlockEvent(self.request.request_id, self._num_blocks - 1, tokens, Stats(), reason, constraint_met=met)
        self.stats.add_event(event, self._canvas.steps)

    def _rows(self, query: Evaluate) -> list[Row]:
        row, pace, masks, adjuster = self._row, self.pace, self._masks, self._adjuster
        if query.top_logprobs:
            row = replace(row, logprobs=self.request.logprobs_with(query.top_logprobs))
        if query.edit:
            row = replace(row, rescore=query.edit, edits=True)
        if pace is not None and len(query.states) == 1 and (pace.mrp_steps > 0 or self._may_go_ahead):
            row = replace(row, rule=self._rule)
        rows = [replace(row, state=state) for state in query.states]
        return [self._constrained(row) for row in rows] if masks or adjuster else rows

    def _constrained(self, row: Row) -> Row:
        """The row with its state's token mask and adjustments."""
        mask, adjuster = self._masks.get(row.state), self._adjuster
        adjustments = adjuster.adjustments(row.state, mask, row.rescore) if adjuster else ()
        return replace(row, mask=mask, adjustments=adjustments)

    def _with_first(self, rows: list[Row], budget: int) -> list[Row]:
        """The rows to store. The last one also reads the first position of the block that is decoded.

        If its block is stored already, as the prompt's last one may be, it is computed again and not stored.
        """
        index, query = self._index - 1, self._query
        if not budget:
            return rows
        if self._num_unread:
            return [*rows[:-1], replace(rows[-1], sampling=self.request.sampling, opens_next=True)]
        if not rows:
            rows = [Row(Block(self.lease.prefix.blocks[index]), index, self.lease.pages, writes_kv=False)]
        (read,), last = self._rows(cast(Evaluate, query)), rows[-1]
        return [
            *rows[:-1],
            replace(
                last,
                sampling=read.sampling,
                mask=read.mask,
                logprobs=read.logprobs,
                adjustments=read.adjustments,
                opens_next=True,
                unsampled=read.unsampled,
            ),
        ]

    def _next_drafting(self, row: Row, anchor: Anchor) -> list[Row]:
        """The row of the next forward of MRP for drafts: the state after the last one's picks, which are not read."""
        masked = row.state.tokens.count(MASKED) - (self._rule.num_picks or 1)
        if masked < 1 or not 0 < self._num_unread <= self.num_chained:
            return []
        return [replace(row, state=unknown_state(self._block_size, masked), anchor=anchor, after=anchor)]

    def _refined_uncertain(self, uncertain: Uncertain) -> list[Row]:
        """MRP's rows of a block that may be complete, and of the next one. A complete block is stored."""
        rows, anchors, num_refined = uncertain
        if not num_refined or None in anchors:
            return []
        masked = [self._left(row.state.tokens.count(MASKED), refined=row.anchor is not None) for row in rows]
        return [
            *self.blocks.for_mrp,
            *[
                replace(row, state=unknown_state(self._block_size, count), anchor=anchor, after=anchor, rule=self._gate)
                for row, count, anchor in zip(rows, masked, anchors, strict=True)
            ],
        ]

    def _rows_ahead(self, ahead: Ahead) -> list[Row]:
        refines = ahead.num_refined > 0
        row = replace(
            self._row,
            state=unknown_state(self._block_size, ahead.masked),
            index=ahead.index,
            writes_kv=ahead.uncertain and not refines,
            anchor=ahead.after if refines else None,
            drafts=False,
            after=ahead.after,
            rule=self._gate if refines else self._rule,
        )
        if not row.writes_kv or ahead.index + 1 == len(self.lease.pages):
            return [row]
        state = unknown_state(self._block_size, self._block_size)
        return [row, replace(row, state=state, index=ahead.index + 1, writes_kv=False, after=None)]

    def _refined(self, query: Refine) -> Row:
        row = replace(
            self._row,
            state=query.state,
            rescore=query.rescore,
            anchor=query.after.handle,
            logprobs=None if self._only_drafts else self.request.logprobs,
            rule=self._rule if self._chains_drafts else None,
        )
        return self._constrained(row) if self._masks or self._adjuster else row


def check_finite(predictions: Iterable[Prediction]) -> None:
    """OutputsNotFinite if a confidence is not. NaN or infinity among a position's logits makes its confidence NaN.

    Only what a policy reads is checked: a row ahead may have read pages or numbers that an earlier forward left.
    """
    total = 0.0
    for prediction in predictions:
        total += sum(prediction.confidences)
        for pick in prediction.rescored:
            total += pick.confidence
    if not isfinite(total):
        raise OutputsNotFinite(
            "the model's outputs for this request are not finite: weights have NaN, or overflow in their type"
        )


def _of_state(prediction: Prediction, state: Block) -> Prediction:
    """The prediction of a row ahead, for the masked positions of its state, which the host did not know."""
    return prediction.of_positions(state.masked[: len(prediction.positions)])
