"""A running request that decodes: its mode's policy decodes one block after the other, by predictions of its states.

The policy alone makes events, steps and statistics. Which rows bring its predictions is the kinds' affair.
"""

from itertools import chain
from typing import Any

from service.decode.block import MASKED, Block
from service.decode.canvas import BlockGrammar, Canvas, DraftBudget, EditTokens, GrammarMatcher
from service.decode.policy import Decoding, Evaluate, Prediction, Query
from service.decode.prompt_lookup import PromptLookup
from service.engine.logit_adjuster import LogitAdjuster
from service.engine.request import BlockEvent, FinishReason, Stats
from service.engine.running_request import Admitted, RunningRequest, check_finite
from service.errors import MrpServeError


class DecodingRequest(RunningRequest):
    """A running request with a policy."""

    __slots__ = (
        "_adjuster", "_canvas", "_decoding", "_edit_tokens", "_head", "_in_order", "_index", "_leading", "_lookup",
        "_masks", "_matcher", "_num_recorded", "_query", "_rule",
    )  # fmt: skip

    def __init__(self, admitted: Admitted) -> None:
        super().__init__(admitted)
        request, model = admitted.request, admitted.model
        self._in_order = model.causal
        self._rule = request.mode.rule.in_order if self._in_order else request.mode.rule
        head = request.prompt_token_ids[self._num_prompt_blocks * self._block_size :]
        self._adjuster = LogitAdjuster(request, len(head)) if request.sampling.adjusts_logits else None
        self._edit_tokens: EditTokens | None = None  # those that the policy may get
        moves = request.mode.moves_tokens and request.grammar is None
        if moves and model.edit_token_ids and not (self._adjuster and self._adjuster.knows_places):
            self._edit_tokens = EditTokens(*model.edit_token_ids)
        self._matcher: GrammarMatcher | None = None
        self._masks: dict[Block, Any] = {}  # the grammar's token masks of the query's states
        self._query: Query | None = None  # of the policy
        self._lookup: PromptLookup | None = None  # the text, once drafts are copied from it
        # the block that is decoded
        self._index = self._num_prompt_blocks
        self._canvas: Canvas
        self._decoding: Decoding  # the policy's generator
        self._start_block(head)

    def start(self) -> None:
        request = self.request
        if request.grammar is not None:
            self._matcher = request.grammar.open()
            if request.num_continued:
                self._matcher.advance(request.prompt_token_ids[-request.num_continued :])
            self._canvas.grammar = BlockGrammar(self._matcher, self._head)
            self._canvas.begin()
        self._continue(next(self._decoding, None))

    def fail(self, error: MrpServeError) -> None:
        self._decoding.close()
        self._query = None
        self._masks.clear()
        super().fail(error)

    def release(self) -> None:
        del self._canvas, self._decoding

    @property
    def _num_blocks(self) -> int:
        return self._index - self._num_prompt_blocks

    def _start_block(self, head: tuple[int, ...] = ()) -> None:
        self._head = len(head)
        self._leading = len(head)  # tokens before this position are final, and the answer does not end there
        self.drafts.pages = self._index
        self.lease.want(self._index)
        block = Block(head + (MASKED,) * (self._block_size - len(head)))
        self._canvas = Canvas(block, budget=self._budget, ends=self._settled, edit_tokens=self._edit_tokens)
        self._canvas.in_order, self._canvas.lookup = self._in_order, self._text
        self._num_recorded = 0  # the canvas's steps that are recorded
        if self._adjuster is not None:
            self._canvas.without_bad_words = self._adjuster.without_bad_words
        if self._matcher is not None:
            self._canvas.grammar = BlockGrammar(self._matcher, self._head)
            self._canvas.begin()
        self._decoding = self.request.mode.decode(self._canvas)

    def _budget(self) -> DraftBudget:
        """The budget of drafts in the next forward of the backbone: nothing if it has already begun."""
        return DraftBudget() if self._next_has_begun else self.drafts.budget()

    @property
    def _next_has_begun(self) -> bool:
        return self._num_unread > 0

    def _text(self) -> PromptLookup:
        if self._lookup is None:
            self._lookup = PromptLookup(chain.from_iterable(self.blocks.history))
        return self._lookup

    def _send(self, predictions: tuple[Prediction, ...]) -> None:
        """Answers the policy's query."""
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
            block = self._canvas.block
            self._end_block(block)
            if self.finish_reason is not None:
                return
            self.blocks.add(block, self._index - 1)
            if self._lookup is not None:
                self._lookup.append(block.tokens)
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
                    self._end_block(block)
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
        self.drafts.record(evaluated, new_steps)
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

    def _end(self, reason: FinishReason) -> None:
        block = self._canvas.block
        self._end_block(block.remask(self._query.edit) if isinstance(self._query, Evaluate) else block, reason)

    def _end_block(self, block: Block, expired: FinishReason | None = None) -> None:
        """The block ends in this state, and perhaps the answer. `expired`: the reason if it ends before its end."""
        if self._num_recorded < len(self._canvas.steps):
            self._record_steps(0)
        tokens, reason = self._new_tokens(block)
        self._decoding.close()
        self._query = None
        self._index += 1
        self.stats.decoded_tokens += len(tokens) + (reason == "stop")
        self.finish_reason = reason = reason or expired
        met = None if reason is None or self._matcher is None else self._matcher.complete(tokens)
        event = BlockEvent(self.request.request_id, self._num_blocks - 1, tokens, Stats(), reason, constraint_met=met)
        self.stats.add_event(event, self._canvas.steps)


def of_state(prediction: Prediction, state: Block) -> Prediction:
    """The prediction of a row whose state the host did not know, for the masked positions of this state."""
    return prediction.of_positions(state.masked[: len(prediction.positions)])
