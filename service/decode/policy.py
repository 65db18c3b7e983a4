"""The protocol of policies: a policy is a generator that decodes one block by asking for predictions.

A policy yields `Evaluate` (the backbone reads states of the block) or `Refine` (MRP predicts the backbone's output for
a newer state). It receives one `Prediction` per state. It reveals tokens on its canvas and returns when the block is
complete. At every `Evaluate` the canvas must hold only final tokens, except at positions of `Evaluate.edit`, since the
engine may stop a policy there.
Policies use no tensors; tests drive them with a scripted oracle.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from service.decode.block import MASKED, Block, Pick, PositionLogprobs

_T = TypeVar("_T")


class Prediction(Struct, frozen=True, gc=False):
    """The model's output for one state of a block, column by column: a value for every position that is read.

    The last three are empty where nothing needs them. Picks are made on demand: few states of a tree are accepted.
    """

    positions: Sequence[int]  # the masked positions and those of `Evaluate.edit`, ascending
    tokens: Sequence[int]  # the chosen tokens
    confidences: Sequence[float]  # as of `Pick`
    rescored: tuple[Pick, ...] = ()  # the state's token at each position of `Refine.rescore`, with its probability
    handle: Any = None  # the anchor of a later Refine; opaque to policies
    entropies: Sequence[float] = ()  # of the full softmax in nats, at the temperature of confidences
    logprobs: Sequence[PositionLogprobs | None] = ()  # those that the request wants
    token_logprobs: Sequence[float] = ()  # `Pick.logprob` of the tokens

    @property
    def picks(self) -> tuple[Pick, ...]:
        """For every masked position, ascending, the chosen token and its probability. Made anew by each call."""
        return self.picked(range(len(self.positions)))

    def picked(self, indices: Iterable[int]) -> tuple[Pick, ...]:
        return tuple([self.pick(index) for index in indices])

    def pick(self, index: int) -> Pick:
        logprobs, token_logprobs = self.logprobs, self.token_logprobs
        return Pick(
            self.positions[index],
            self.tokens[index],
            self.confidences[index],
            logprobs[index] if logprobs else None,
            token_logprobs[index] if token_logprobs else None,
        )

    def most_confident(self, count: int = 1) -> tuple[Pick, ...]:
        """The `count` picks of highest confidence; ties go to the lowest position."""
        confidences = self.confidences
        if count == 1:  # by far the most frequent count
            return (self.pick(confidences.index(max(confidences))),)
        return self.picked(sorted(range(len(confidences)), key=confidences.__getitem__, reverse=True)[:count])

    def of_positions(self, masked: Sequence[int]) -> Prediction:
        """The same values at these masked positions, ascending. Further values are dropped."""
        count = len(masked)
        if count == len(self.positions):
            return replace(self, positions=masked)
        return replace(
            self,
            positions=masked,
            tokens=self.tokens[:count],
            confidences=self.confidences[:count],
            entropies=self.entropies[:count],
            logprobs=self.logprobs[:count],
            token_logprobs=self.token_logprobs[:count],
        )

    def restricted_to(self, block: Block) -> Prediction:
        """The prediction restricted to the masked positions of `block`, a later state of the same block."""
        state, positions = block.tokens, self.positions
        masked = [index for index, position in enumerate(positions) if state[position] == MASKED]
        if len(masked) == len(positions):
            return self

        def restricted(column: Sequence[_T]) -> Sequence[_T]:
            return [column[index] for index in masked] if column else ()

        return replace(
            self,
            positions=restricted(positions),
            tokens=restricted(self.tokens),
            confidences=restricted(self.confidences),
            entropies=restricted(self.entropies),
            logprobs=restricted(self.logprobs),
            token_logprobs=restricted(self.token_logprobs),
        )


class Evaluate(Struct, frozen=True, gc=False):
    """Asks the backbone for one Prediction per state. `states[0]` is the canvas's block.

    With `gains`, the engine may leave out the last states and answer with fewer predictions.
    """

    states: tuple[Block, ...]
    top_logprobs: int = 0  # the least number of top tokens that each pick must have (`Pick.logprobs`)
    gains: tuple[float, ...] = ()  # the expected gain, in tokens, of each state after the first
    edit: tuple[int, ...] = ()  # revealed positions of the only state that are read, too; their tokens may still change
    device_numbers: tuple[int, ...] = ()  # `Draft.device_number` of the states after the first
    num_following: int = 0  # the most queries of MRP that follow, the first of the state after the rule's picks


class Refine(Struct, frozen=True, gc=False):
    """Asks MRP for the Prediction of `state`, anchored on an earlier one."""

    after: Prediction
    state: Block
    rescore: tuple[int, ...] = ()  # revealed positions of `state` for whose tokens MRP also gives probabilities
    num_following: int = (
        0  # the most such queries that follow, each of the state after the rule's picks in the one before
    )


Query = Evaluate | Refine
Decoding = Generator[Query, tuple[Prediction, ...], None]
