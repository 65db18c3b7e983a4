"""Rows, the unit of a forward's work; their tensors; and the forward's output, on which later forwards of MRP build.

A row is one block of tokens of one request at a block index. Prefill, denoise, verify, commit and MRP's passes are all
rows. A row of MRP has an `Anchor`: the earlier row whose hidden states it reads.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray
from torch import Tensor, index_select, stack

from service.decode.block import MASKED, Block
from service.decode.drafts import NUM_STEPS
from service.decode.rules import Rule
from service.engine.request import ForwardKind, LogprobsRequest, SamplingParams
from service.model.config import ModelConfig
from service.model.transfer import PackedTables


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """Draft candidates of positions: the tokens, int64 `[P, C]`, and `other_weight`, the weight of all others, `[P]`.

    The weight is the logsumexp of the logits that rules read (`logits_sampler.py`), the mask token's included.
    """

    tokens: Tensor
    other_weight: Tensor


class ForwardOutput(Struct, frozen=True, eq=False):
    """A forward's output that stays on the device for MRP. `hidden`: hidden states `[R, L, H]`.

    `candidates`: draft candidates. `slots` `[R, L]`: the index of a position's candidates in them, -1 for none.
    `has_candidates` `[R]`: whether a row's masked positions have candidates.
    """

    hidden: Tensor
    candidates: Candidates | None = None
    slots: NDArray[np.int64] | None = None
    has_candidates: NDArray[np.bool_] | None = None


class Anchor(Struct, frozen=True, gc=False):
    """Row `row` of a forward's output."""

    output: ForwardOutput
    row: int

    @property
    def hidden(self) -> Tensor:
        return self.output.hidden[self.row]

    @property
    def has_candidates(self) -> bool:
        return self.output.has_candidates is not None and bool(self.output.has_candidates[self.row])


class LogitAdjustment(NamedTuple):
    """The changes at the masked positions of a state.

    `tokens` `[K]`, distinct: the tokens whose logits change at every position. `bias`, `divisor`, `penalty`: `[K]`
    float32. A logit first gets the bias. Then it is divided by the divisor, or multiplied if it is not positive. Then
    the penalty is subtracted. `forbidden`: position in the block -> further tokens that may not stand there.
    """

    tokens: NDArray[np.int32]
    bias: NDArray[np.float32]
    divisor: NDArray[np.float32]
    penalty: NDArray[np.float32]
    forbidden: Mapping[int, Sequence[int]]


#: the lines of a request in the state table: two for the states of its blocks, the others for drafts by their numbers
LINES = 1 + 2**NUM_STEPS
#: the last number of a draft that has a line
MAX_DRAFT = LINES - 2


class Row(Struct, frozen=True, gc=False):
    """One block of tokens. It reads its request's first `index` pages and, if `writes_kv`, writes the next one."""

    state: Block
    index: int
    pages: Sequence[int]  # the request's pages
    writes_kv: bool
    sampling: SamplingParams | None = None  # of its masked positions; None: its output is not sampled
    rescore: tuple[int, ...] = ()  # revealed positions that are read, too: the probability of the token there
    kind: ForwardKind = "denoise"
    anchor: Anchor | None = None  # the earlier row whose hidden states a row of MRP reads
    entropy: bool = False  # whether the entropies of the masked positions are computed
    drafts: bool = False  # whether MRP's picks of the block are drafts only, so that candidates suffice
    mask: NDArray[np.uint8] | None = None  # tokens allowed at the leftmost masked position, a bit each; None: all
    logprobs: LogprobsRequest | None = None  # the log-probabilities wanted of each masked position
    #: the changes of logits, of the masked positions first, then of each position of `rescore`; empty: none
    adjustments: tuple[LogitAdjustment, ...] = ()
    rule: Rule | None = (
        None  # reveals picks in the state table (`row_states.py`), for a later row whose state is `on_device`
    )
    #: whether the state table alone has its state. The host does not know it yet: it has at most as many
    #: masked positions as `state`
    on_device: bool = False
    first_line: int = 0  # of its request's lines of the state table; 0: it has none
    #: whether the device drafts after its picks: the states after some of the rule's next steps by the same prediction
    drafts_follow: bool = False
    num_drafts: int = 0  # the next rows that are such drafts of its state, which the device has made before
    #: the number of a draft that has a line, `Draft.device_number` if the device has made it; 0: it is none
    draft: int = 0
    edits: bool = False  # whether tokens are chosen anew at `rescore`, as at masked positions
    #: whether the next block's first position is read, at the row's last output; only of models with shifted outputs
    opens_next: bool = False
    unsampled: tuple[int, ...] = ()  # the tokens that are not chosen, beside the mask token: the model's edit tokens

    @property
    def line(self) -> int:
        """The line of the state table in which its state is kept. 0: in none."""
        if not self.first_line or not (self.on_device or self.rule is not None):
            return 0
        return self.first_line + (1 + self.draft if self.draft else self.index % 2)


def masked_row(config: ModelConfig, num_pages: int, index: int) -> Row:
    """A greedy row of masks after `index` pages, or after the longest request's pages. It writes no page."""
    size = config.block_size
    index = min(index, min(config.max_positions // size, num_pages) - 1)
    return Row(Block((MASKED,) * size), index, range(index), writes_kv=False, sampling=SamplingParams())


def apart(row: Row, count: int) -> list[Row]:
    """Rows of `count` different requests."""
    return [replace(row, pages=[*row.pages]) for _ in range(count)]


def state_tokens(rows: Sequence[Row]) -> NDArray[np.int64]:
    """The tokens of the rows' states, `[R, L]`, at least one row, `MASKED` at masked positions."""
    tokens = chain.from_iterable([row.state.tokens for row in rows])
    length = len(rows[0].state.tokens)
    return np.fromiter(tokens, np.int64, len(rows) * length).reshape(-1, length)


def tokens_and_positions(rows: Sequence[Row], mask_token_id: int) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """The tokens and the positions of rows, `[R, L]` each."""
    tokens = state_tokens(rows).astype(np.int32)
    tokens[tokens == MASKED] = mask_token_id
    block_size = tokens.shape[1]
    positions = np.array([row.index * block_size for row in rows])[:, None] + np.arange(block_size)
    return tokens, positions


def anchors_of(rows: Sequence[Row]) -> list[Anchor] | None:
    """The anchors of MRP's rows. None if the rows are not MRP's."""
    return [row.anchor for row in rows if row.anchor is not None] or None


class AnchorRows:
    """The hidden states of MRP's anchors, gathered on the device."""

    def __init__(self, anchors: Sequence[Anchor], tables: PackedTables) -> None:
        self._anchors = anchors
        output = anchors[0].output
        is_single = all(anchor.output is output for anchor in anchors)
        self._rows = tables.add(np.array([anchor.row for anchor in anchors])) if is_single else None

    @property
    def like(self) -> Tensor:
        return self._anchors[0].output.hidden

    def hidden(self, out: Tensor | None = None) -> Tensor:
        """The hidden states `[R, L, H]`, after the tables are sent: one operation if all anchors are of one forward."""
        if self._rows is None:
            return stack([anchor.hidden for anchor in self._anchors], out=out)
        return index_select(self.like, 0, self._rows.tensor, out=out)
