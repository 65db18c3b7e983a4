"""A running request of a block-diffusion model: the rows that its policy's queries need.

A finished block is stored by a row in the same forward as the next block's first evaluation (`stored_blocks.py`).
Where its mode and the device allow it, the next rows begin before the last ones are read (`lookahead.py`).
"""

from collections.abc import Sequence
from typing import cast

from msgspec.structs import replace

from service.decode.block import Block
from service.decode.canvas import DraftBudget
from service.decode.policy import Evaluate, Prediction, Refine
from service.decode.registry import only_drafts
from service.engine.decoding_request import DecodingRequest, of_state
from service.engine.drafts_ahead import DraftsAhead
from service.engine.forward.rows import Anchor, Row
from service.engine.lookahead import Lookahead
from service.engine.running_request import Admitted
from service.model.config import ModelConfig


class DiffusionRequest(DecodingRequest):
    """A running request whose blocks are denoised."""

    __slots__ = ("_drafts_ahead", "_lookahead", "_only_drafts", "_row")

    def __init__(self, admitted: Admitted) -> None:
        request, model, lease, _, drafts, first_line = admitted
        super().__init__(admitted)
        self._only_drafts = drafts.uses_mrp and only_drafts(request.mode)  # whether MRP's picks are drafts only
        uses_candidates = self._only_drafts and self._adjuster is None  # draft candidates are not adjusted
        self._row = Row(  # of the block's states, without them
            Block(()),
            self._index,
            lease.pages,
            writes_kv=False,
            sampling=request.sampling,
            entropy=self._rule.needs_entropy,
            drafts=uses_candidates,
            logprobs=request.logprobs,
            unsampled=() if self._edit_tokens else model.edit_token_ids or (),
            first_line=first_line,
        )
        self._lookahead: Lookahead | None = None  # None: no row begins before the predictions of earlier ones are read
        self._drafts_ahead: DraftsAhead | None = None
        if first_line and self._rule.device_picks is not None and request.grammar is None:
            self._go_ahead(model, uses_candidates=uses_candidates)

    def _go_ahead(self, model: ModelConfig, *, uses_candidates: bool) -> None:
        """Decides once whether the request's rows may begin ahead. The device can keep its states."""
        request, pace = self.request, self.request.mode.pace
        if uses_candidates:
            self._drafts_ahead = DraftsAhead(self._rule, self._block_size)
        if pace is not None and self._adjuster is None and request.logprobs is None:
            refines, filtered = pace.mrp_steps > 0, request.sampling.draws_filtered
            if pace.is_fixed or not (refines and filtered):
                self._lookahead = Lookahead(pace, self._rule, model, self.blocks, self.drafts)
                self.drafts.by_device = pace.is_fixed and not (refines or request.mode.drafts_decide)
                self.replays = "tokens" if refines and not filtered else None
        if self._drafts_ahead is not None:
            self.replays = "drafts"

    # Its next rows

    @property
    def num_rows(self) -> int:
        stored, query = len(self.blocks.unwritten), self._query
        if self._num_unread:
            return stored + (0 if self._lookahead is None or self.waits else self._lookahead.num_rows)
        return stored + (len(query.states) if isinstance(query, Evaluate) else 0)

    @property
    def waits(self) -> bool:
        if not self._num_unread:
            return False
        return self._lookahead is None or self._lookahead.next is None or not self._lookahead.is_open

    def next_rows(self, budget: int, prompt_budget: int | None = None) -> list[Row]:
        stored: list[Row] = []
        if self.blocks.unwritten:
            stored = self._rows_to_store(budget, prompt_budget)
            if len(stored) < len(self.blocks.unwritten):
                return stored
        states = self._rows_of_states()
        return [*stored, *states] if len(stored) + len(states) <= budget else stored

    def _rows_of_states(self) -> list[Row]:
        if self._num_unread:
            return [] if self._lookahead is None else self._lookahead.rows(self._row)
        return self._rows(self._query) if isinstance(self._query, Evaluate) else []

    def _budget(self) -> DraftBudget:
        if self._next_has_begun and self._lookahead is not None:
            return DraftBudget(device_numbers=self._lookahead.drafts_read)
        return super()._budget()

    @property
    def _next_has_begun(self) -> bool:
        return self._num_unread > (0 if self._drafts_ahead is None else self._drafts_ahead.num_unread)

    def expected_gains(self, rows: list[Row]) -> list[float]:
        query = self._query
        if self._num_unread or not isinstance(query, Evaluate) or not query.gains or rows[-1].writes_kv:
            return []
        return self.drafts.expected_gains(query.gains)

    def next_refinement(self) -> list[Row]:
        if self.finish_reason is not None or self._num_unread:
            return []
        if isinstance(self._query, Refine):
            return [*self.blocks.for_mrp, self._refined(self._query)]
        return list(self.blocks.for_mrp)

    def next_refinement_ahead(self) -> list[Row]:
        drafts, lookahead = self._drafts_ahead, self._lookahead
        if drafts is not None and (following := self._num_following):
            return [*self.blocks.for_mrp, *drafts.rows()] if 0 < self._num_unread <= following else []
        if lookahead is None or (lookahead.next is None and lookahead.unsettled is None):
            return []
        # Stored blocks go along. Alone they may wait for a refinement (`step.py`)
        return [*self.blocks.for_mrp, *lookahead.refined_rows(self._row)]

    @property
    def num_replays(self) -> int:
        if self._drafts_ahead is not None:
            return max(0, self._num_following - isinstance(self._query, Evaluate))
        return 0 if self._lookahead is None else max(0, self._lookahead.num_refined - 1)

    @property
    def _num_following(self) -> int:
        """The forwards of MRP for drafts that may follow the query's own forward before anything is read."""
        query = self._query
        if self._drafts_ahead is None or query is None or not (isinstance(query, Refine) or self.drafts.refines):
            return 0
        return query.num_following

    def wait_for_results(self) -> bool:
        lookahead = self._lookahead
        if not self._num_unread:
            return False
        if self._drafts_ahead is not None:
            return isinstance(self._query, Evaluate) and self._num_following > 0
        if lookahead is None or lookahead.pace.gate is None:
            return False
        lookahead.next = None
        return True

    def _rows(self, query: Evaluate) -> list[Row]:
        row, lookahead = self._row, self._lookahead
        if query.top_logprobs:
            row = replace(row, logprobs=self.request.logprobs_with(query.top_logprobs))
        if query.edit:
            row = replace(row, rescore=query.edit, edits=True)
        if lookahead is not None and len(query.states) == 1 and (lookahead.pace.mrp_steps > 0 or lookahead.is_open):
            row = lookahead.revealing(row)
        if row.drafts and not self.drafts.refines:
            row = replace(row, drafts=False)
        rows = [replace(row, state=query.states[0], index=self._index)]
        if len(query.states) > 1:
            rows += [replace(rows[0], state=state, kind="verify") for state in query.states[1:]]
        if self._drafts_ahead is not None and self._num_following:
            rows = self._drafts_ahead.revealing(rows)
        return [self._constrained(row) for row in rows] if self._masks or self._adjuster else rows

    def _refined(self, query: Refine) -> Row:
        row = replace(
            self._row,
            state=query.state,
            index=self._index,
            rescore=query.rescore,
            kind="mrp",
            anchor=query.after.handle,
            logprobs=None if self._only_drafts else self.request.logprobs,
            rule=None if self._drafts_ahead is None else self._rule,
        )
        return self._constrained(row) if self._masks or self._adjuster else row

    def _constrained(self, row: Row) -> Row:
        """The row with its state's token mask and adjustments."""
        mask, adjuster = self._masks.get(row.state), self._adjuster
        adjustments = adjuster.adjustments(row.state, mask, row.rescore) if adjuster else ()
        return replace(row, mask=mask, adjustments=adjustments)

    # Its forwards

    def begin(self, rows: list[Row], anchors: Sequence[Anchor]) -> None:
        stored, row = self.blocks.begin(rows, anchors) if rows[0].writes_kv else 0, rows[-1]
        if row.sampling is None:
            return
        self._num_unread += 1
        drafts = self._drafts_ahead
        if drafts is not None and (row.kind == "mrp" or self._num_following):
            drafts.begin(rows[stored:], anchors[stored:])
            stored = len(rows)
        if self._lookahead is not None:
            self._lookahead.begin(rows[stored:], anchors[stored:])

    def receive_predictions(self, rows: list[Row], predictions: Sequence[Prediction]) -> None:
        if rows[-1].sampling is None:
            return
        self._num_unread -= 1
        first = 0 if rows[0].sampling is not None else [row.sampling is not None for row in rows].index(True)
        if self._lookahead is None:
            self._send_evaluated(predictions[first:])
            return
        row, read = rows[first], predictions[first:]
        if row.writes_kv and self._index > row.index:  # its state was complete, so it has stored its block
            if rows[-1].index == row.index:
                return
            row, read = rows[-1], read[-1:]
        query = self._query
        numbers = query.device_numbers if isinstance(query, Evaluate) else ()
        if row.on_device and isinstance(query, Evaluate):
            by_number = {drafted.draft: result for drafted, result in zip(rows[first:], read, strict=True)
                         if drafted.index == row.index}  # fmt: skip
            of_states = zip((0, *numbers), query.states, strict=True)
            read = [of_state(by_number[number], state) for number, state in of_states]
        self._send_evaluated(read)
        self._settle(self._lookahead)

    def _send_evaluated(self, predictions: Sequence[Prediction]) -> None:
        drafts, query = self._drafts_ahead, self._query
        self._send(tuple(predictions))
        if drafts is not None and isinstance(query, Evaluate):
            drafts.receive(query.states, predictions, self._query)

    def needs_refinement(self, rows: list[Row]) -> bool:
        return self._drafts_ahead is None or rows[-1].sampling is None or self._index_of_query(rows) is not None

    def receive_refinement(self, rows: list[Row], predictions: Sequence[Prediction]) -> None:
        """Predictions for which the policy does not ask are dropped: ahead, only the device knew what it would ask."""
        if rows[-1].sampling is None:
            return
        self._num_unread -= 1
        drafts = self._drafts_ahead
        if drafts is not None:
            drafts.num_unread -= 1
        elif self._lookahead is None:
            self._send((predictions[-1],))
            return
        if (index := self._index_of_query(rows)) is None:
            return
        prediction, state = predictions[index], cast(Refine, self._query).state
        if rows[index].on_device:
            prediction = of_state(prediction, state)
        self._send((prediction,))
        if drafts is not None:
            drafts.receive((state,), (prediction,), self._query)
        if self._lookahead is not None:
            self._settle(self._lookahead)

    def _index_of_query(self, rows: Sequence[Row]) -> int | None:
        """The index of the row of MRP for whose prediction the policy asks. None: it asks for none of them."""
        query, drafts = self._query, self._drafts_ahead
        if not isinstance(query, Refine):
            return None
        for index, row in enumerate(rows):
            if row.anchor == query.after.handle:
                return index if drafts is None or drafts.follows or not row.on_device else None
        return None

    def _settle(self, lookahead: Lookahead) -> None:
        if self.finish_reason is None and not isinstance(self._query, Refine):
            lookahead.settle(self._index, self._canvas.block)
