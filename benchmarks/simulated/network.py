"""Networks as functions of context and state, in pure Python: any plan gives the same answers.

A page holds a hash of the tokens up to its end. The predictions of a state are made from that hash and its tokens.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log

import torch
from msgspec import field
from msgspec.structs import replace

from service.decode.block import MASKED, Block, Pick, PositionLogprobs
from service.decode.policy import Prediction
from service.engine.forward.row_states import states_after
from service.engine.forward.rows import Anchor, ForwardOutput, Row

#: the context of a text's first block, and of a page that no row has written
_FIRST, _UNWRITTEN = 1, 0
_BITS = (1 << 64) - 1
#: the most predictions and blocks that are remembered
_MEMORY = 100_000
_NO_HIDDEN = torch.empty(0)


@dataclass(frozen=True, slots=True)
class Acceptance:
    """How well drafts agree with the backbone's own picks. The values are near the demo's, in blocks of 8.

    `spread`: how much a position's confidence (its logit) changes from state to state, which the backbone's drafts do
    not see: 0 is best. `error`: the share of positions whose token changes once the position before is revealed.
    `refined`: the share of positions that MRP reads as the backbone would, 0 to 1.
    """

    spread: float = 1.6
    error: float = 0.25
    refined: float = 0.7


class SimulatedOutput(ForwardOutput, frozen=True, eq=False):
    """The output of a forward: by row the prediction, without its handle, and the state after the rule's picks."""

    predictions: list[Prediction] = field(default_factory=list)
    states: list[Block] = field(default_factory=list)


def output_of(anchor: Anchor) -> SimulatedOutput:
    """The output of the forward in which an anchor is a row."""
    if not isinstance(anchor.output, SimulatedOutput):
        raise TypeError(f"the output is {type(anchor.output).__name__}, expected is a SimulatedOutput")
    return anchor.output


class SimulatedWeights:
    """The predictions of states. They keep no state, so all plans of a world may share them, and what they remember."""

    def __init__(self, block_size: int, acceptance: Acceptance) -> None:
        self._size, self._acceptance = block_size, acceptance
        self._blocks: dict[int, tuple[list[float], list[int], list[float]]] = {}
        self._predictions: dict[tuple[int, tuple[int, ...]], Prediction] = {}

    def predict(self, context: int, state: Block) -> Prediction:
        """The backbone's prediction of a state after a context."""
        key = context, state.tokens
        if (prediction := self._predictions.get(key)) is None:
            if len(self._predictions) >= _MEMORY:
                self._predictions.clear()
            self._predictions[key] = prediction = self._predict(context, state.tokens)
        return prediction

    def _predict(self, context: int, tokens: tuple[int, ...]) -> Prediction:
        bits = _bits(context, tokens, 0)
        read = [(p, *self._read(context, tokens, p, bits)) for p, token in enumerate(tokens) if token == MASKED]
        positions, chosen, confidences = zip(*read, strict=True) if read else ((), (), ())
        return Prediction(positions, chosen, confidences)

    def _read(self, context: int, tokens: tuple[int, ...], p: int, bits: int) -> tuple[int, float]:
        """The token of a position and its confidence, by the tokens beside it."""
        logits, answer, sureness = self._block(context)
        acceptance, last = self._acceptance, self._size - 1
        left, right = p == 0 or tokens[p - 1] != MASKED, p < last and tokens[p + 1] != MASKED
        change = acceptance.spread * (((bits >> (7 * p)) & 127) / 127.0 - 0.5)
        token = answer[p] if left or sureness[p] > acceptance.error else answer[p] + 1
        return token, 1.0 / (1.0 + exp(-(logits[p] + 1.8 * left + 0.6 * right + change)))

    def rescore(self, context: int, state: Block, positions: Sequence[int]) -> tuple[Pick, ...]:
        """The state's tokens at these positions, with their probabilities. Other tokens than its own are unlikely."""
        bits, picks = _bits(context, state.tokens, 0), list[Pick]()
        for p in positions:
            token, confidence = self._read(context, state.tokens, p, bits)
            picks.append(Pick(p, state.tokens[p], confidence if token == state.tokens[p] else (1.0 - confidence) / 2))
        return tuple(picks)

    def refine(self, context: int, state: Block, before: Prediction) -> Prediction:
        """MRP's prediction: some positions as the backbone reads the state, the others as the row before did."""
        prediction = self.predict(context, state)
        old = {p: (t, c) for p, t, c in zip(before.positions, before.tokens, before.confidences, strict=True)}
        bits = _bits(context, state.tokens, 7)
        tokens, confidences = [*prediction.tokens], [*prediction.confidences]
        for index, p in enumerate(prediction.positions):
            if (bits >> (7 * p)) & 127 > 127 * self._acceptance.refined and p in old:
                tokens[index], confidences[index] = old[p]
        return Prediction(prediction.positions, tuple(tokens), tuple(confidences))

    def _block(self, context: int) -> tuple[list[float], list[int], list[float]]:
        """By position: the logit of its confidence without neighbours, its token, and how sure the token is, 0 to 1."""
        if (block := self._blocks.get(context)) is None:
            if len(self._blocks) >= _MEMORY:
                self._blocks.clear()
            rng, size = random.Random(context), range(self._size)
            logits, tokens = [rng.gauss(0.6, 2.0) for _ in size], [rng.randrange(10, 200) for _ in size]
            self._blocks[context] = block = logits, tokens, [rng.random() for _ in size]
        return block


def _bits(context: int, tokens: tuple[int, ...], salt: int) -> int:
    """128 bits: seven for each position of a block of up to 16 tokens."""
    first = hash((context, tokens, salt) if salt else (context, tokens))
    return first & _BITS | (hash((context, tokens, salt + 1)) & _BITS) << 64


def _with_details(prediction: Prediction, row: Row) -> Prediction:
    """With entropies and with the log-probabilities of two tokens, if the row wants them."""
    if row.entropy:
        prediction = replace(prediction, entropies=[-log(sure) for sure in prediction.confidences])
    if row.logprobs is not None:
        pairs = zip(prediction.tokens, prediction.confidences, strict=True)
        logprobs = [_top_two(token, sure, (1.0 - sure) / 2) for token, sure in pairs]
        token_logprobs = [log(sure) for sure in prediction.confidences]
        prediction = replace(prediction, logprobs=logprobs, token_logprobs=token_logprobs)
    return prediction


def _top_two(token: int, first: float, second: float) -> PositionLogprobs:
    return PositionLogprobs(((token, log(first)), (token + 1, log(second))), confidences=(first, second))


class SimulatedNetwork:
    """Both networks over pages and a state table. As on a CPU, a forward is over once it has begun."""

    def __init__(self, weights: SimulatedWeights) -> None:
        self._weights = weights
        self._pages: dict[int, int] = {}  # the hash of the tokens up to a page's end
        self._lines: dict[int, Block] = {}  # the state table

    def with_states(self, rows: Sequence[Row]) -> list[Row]:
        """The rows with their states, as of `StateTable.with_states`."""
        return [self._with_state(row) if row.on_device else row for row in rows]

    def _with_state(self, row: Row) -> Row:
        state = self._lines[row.line]
        return replace(row, state=state, on_device=False, writes_kv=row.writes_kv and state.complete)

    def compute(self, rows: Sequence[Row]) -> list[Prediction]:
        """A forward over rows, in their order: a row reads the blocks that rows before it have stored."""
        output, rows = SimulatedOutput(_NO_HIDDEN), self.with_states(rows)
        for row in rows:
            self._compute(row, output)
        self._lines |= states_after(rows, output.predictions)
        return [
            replace(prediction, handle=Anchor(output, index)) for index, prediction in enumerate(output.predictions)
        ]

    def _compute(self, row: Row, output: SimulatedOutput) -> None:
        if row.edits:
            raise ValueError("mode is 'edit', which is not simulated: all other modes are")
        state, prediction = row.state, Prediction((), (), ())
        context = self._pages.get(row.pages[row.index - 1], _UNWRITTEN) if row.index else _FIRST
        if row.writes_kv and row.anchor is None and state.complete:
            self._pages[row.pages[row.index]] = hash((context, state.tokens))
        if row.sampling is not None and row.anchor is None:
            prediction = self._weights.predict(context, state)
        elif row.sampling is not None and row.anchor is not None:
            before = output_of(row.anchor).predictions[row.anchor.row]
            prediction = self._weights.refine(context, state, before)
        if row.rescore:
            prediction = replace(prediction, rescored=self._weights.rescore(context, state, row.rescore))
        prediction = _with_details(prediction, row)
        if row.rule is not None:
            state = state.reveal(row.rule(prediction)) if prediction.positions else state
        output.predictions.append(prediction)
        output.states.append(state)
