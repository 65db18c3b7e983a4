"""A running request of a causal model that verifies drafts: all drafted states are one row, also across a block's end.

A token sees no later one. So the row of the last state has the outputs of all states: drafts cost no rows.
Behind the drafts it has masks, whose outputs are the next drafts. If they reach into the next block, that block's row
goes along, and the block's own row writes its page: in vain, unless the block turns out to have these tokens. Then the
same forward is read on in the next block. So each forward verifies what the published loop does (`idlm_blockN.py` of
thuEcstasy/I-DLM), which has no drafts after a rejected one either.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

from msgspec.structs import replace

from service.decode.block import MASKED, Block, Draft, Pick
from service.decode.canvas import DraftBudget
from service.decode.modes import Speculative
from service.decode.policy import Evaluate, Prediction
from service.decode.rules import LeftToRight
from service.engine.decoding_request import DecodingRequest
from service.engine.forward.rows import Row
from service.engine.request import GenerationRequest
from service.engine.running_request import Admitted
from service.model.config import ModelConfig


def verifies_in_one_row(request: GenerationRequest, model: ModelConfig) -> bool:
    """Whether a request's states add one token each, and their logits depend on nothing but the text."""
    mode, is_plain = request.mode, request.grammar is None and not request.sampling.adjusts_logits
    return model.causal and is_plain and isinstance(mode, Speculative) and mode.rule.in_order == LeftToRight()


class _NextDrafts(NamedTuple):
    """Drafts of the next block's first tokens, if this block begins with `tokens`."""

    tokens: tuple[int, ...] = ()
    read: Prediction | None = None

    def after(self, block: Block) -> Sequence[Pick]:
        if self.read is None or block.tokens[: len(self.tokens)] != self.tokens:
            return ()
        return self.read.picks


class CausalRequest(DecodingRequest):
    """A running request for which `verifies_in_one_row` holds. Drafts are known once the last forward is read."""

    __slots__ = ("_draft_masks", "_next_drafts")

    def __init__(self, admitted: Admitted) -> None:
        self._draft_masks, self._next_drafts = admitted.model.draft_masks or 0, _NextDrafts()
        super().__init__(admitted)

    @property
    def num_rows(self) -> int:
        return len(self.blocks.unwritten) + (0 if self._num_unread else 2)

    def next_rows(self, budget: int, prompt_budget: int | None = None) -> list[Row]:
        rows, query = self._rows_to_store(budget, prompt_budget), self._query
        if len(rows) < len(self.blocks.unwritten) or not isinstance(query, Evaluate):
            return rows
        with_states = self._with_states(rows, query)
        return with_states if len(with_states) <= budget else rows[:-1]  # the last one may read a first position

    def receive_predictions(self, rows: list[Row], predictions: Sequence[Prediction]) -> None:
        query, size = self._query, self._block_size
        if rows[-1].sampling is None or not isinstance(query, Evaluate):
            return
        self._num_unread -= 1
        first, last, crosses = query.states[0], query.states[-1], rows[-1].index > self._index
        end = size + rows[-1].state.num_leading if last.complete else last.num_leading  # of final tokens and drafts
        read = _joined(predictions, first.num_leading, end + 1 + self._num_drafts)
        beyond = _slice(read, size - first.num_leading, len(read.positions), -size) if crosses else None
        drafts = self._next_drafts.read if last.complete else beyond
        self._next_drafts = _NextDrafts(last.tokens[: last.num_leading], drafts)
        self._send(_of_states(query.states, read))
        if beyond is not None and self.blocks.confirm(rows[-2]) and isinstance(self._query, Evaluate):
            self._next_drafts = _NextDrafts()
            self._send(_of_states(self._query.states, beyond))

    def _start_block(self, head: tuple[int, ...] = ()) -> None:
        picks = () if self._next_drafts.read is None else self._next_drafts.after(self._canvas.block)
        super()._start_block(head)
        self._canvas.ends = self._answer_ends
        self._canvas.carried = _drafts(self._canvas.block, picks[: self._block_size - 1])

    def _budget(self) -> DraftBudget:
        return DraftBudget(0.0, self._num_drafts)

    @property
    def _num_drafts(self) -> int:
        """The most drafts of a forward, and the number of masks that it reads for the next ones."""
        return min(self._draft_masks, getattr(self.request.mode, "max_drafts", None) or self._block_size)

    def _answer_ends(self, block: Block) -> bool:
        return self._settled(block) and (not block.complete or self._new_tokens(block)[1] is not None)

    def _with_states(self, rows: list[Row], query: Evaluate) -> list[Row]:
        """The rows to store, then the row of the last state. The next block's follows if it is read, too."""
        index, pages, size, request = self._index, self.lease.pages, self._block_size, self.request
        start, last = query.states[0].num_leading, query.states[-1]
        logprobs = request.logprobs_with(query.top_logprobs) if query.top_logprobs else request.logprobs
        row = Row(
            last, index, pages, False, request.sampling, rescore=tuple(range(max(start, 1), last.num_leading)),
            kind="denoise" if len(query.states) == 1 else "verify", logprobs=logprobs, edits=True,
        )  # fmt: skip
        if not start:  # the block before reads the first position
            before = rows.pop() if rows else self._stored_row(index - 1)
            rows = [*rows, replace(before, sampling=request.sampling, logprobs=logprobs, opens_next=True)]
        if last.num_leading + self._num_drafts < size or index + 1 == self.lease.limit:
            return [*rows, row]
        picks = self._next_drafts.after(self._canvas.block)[: size - 1] if last.complete else ()
        following = Block((MASKED,) * size).reveal(picks)
        return [
            *rows,
            replace(row, writes_kv=True, opens_next=True),
            replace(row, state=following, index=index + 1, rescore=tuple(range(1, len(picks)))),
        ]


def _drafts(block: Block, picks: Iterable[Pick]) -> Mapping[Block, Draft]:
    """The states after a block, each with one more pick."""
    drafts, likelihood = dict[Block, Draft](), 1.0
    for number, pick in enumerate(picks, 1):
        block, likelihood = block.reveal((pick,)), likelihood * pick.confidence
        drafts[block] = Draft(number, (pick,), likelihood)
    return drafts


#: the columns of a prediction, beside its positions
_COLUMNS = "tokens", "confidences", "entropies", "logprobs", "token_logprobs"


def _joined(predictions: Sequence[Prediction], start: int, stop: int) -> Prediction:
    """The predictions of rows as one, of the positions from `start` on, before `stop`, counted over the blocks."""
    joined: dict[str, Any] = {
        name: [*chain.from_iterable(getattr(p, name) for p in predictions)][: stop - start] for name in _COLUMNS
    }
    return Prediction(range(start, start + len(joined["tokens"])), **joined)


def _slice(read: Prediction, start: int, stop: int, moved: int = 0) -> Prediction:
    """The values `start` to `stop`, at positions that are `moved`."""
    first, end = read.positions[0] + moved, max(start, min(stop, len(read.positions)))
    cut: dict[str, Any] = {name: getattr(read, name)[start:stop] for name in _COLUMNS}
    return Prediction(range(first + start, first + end), **cut)


def _of_states(states: Sequence[Block], read: Prediction) -> tuple[Prediction, ...]:
    """The prediction of each state: the token after it, and the last one's masks in the block, too."""
    size, count = len(states[0].tokens), len(states)
    in_block = size - states[0].num_leading
    return (*(_slice(read, i, i + 1) for i in range(count - 1)), _slice(read, count - 1, in_block))
