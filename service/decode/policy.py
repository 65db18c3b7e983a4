"""The protocol of policies: a policy is a generator that decodes one block by asking for readings.

A policy yields `Evaluate` (the backbone reads states of the block) or `Refine` (MRP predicts the backbone's reading of
a newer state). It is sent one `Prediction` per state. It reveals tokens on its canvas and returns when the block is
complete. At every `Evaluate` the canvas must hold only final tokens, since the engine may stop a policy there.
Policies use no tensors; tests drive them with a scripted oracle.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

from service.decode.block import MASKED, Block, PositionLogprobs, Pick, make
from service.decode.canvas import Canvas

_T = TypeVar("_T")


class Prediction(NamedTuple):
    """The model's output for one state of a block.

    `positions`: the masked ones, ascending. For each of them `tokens` has the chosen token, `confidences` its
    probability, `entropies` the entropy of the full softmax in nats, and `known` what else the request asked of it. The
    last two are empty where nobody asks. Picks are made only of what a policy looks at, since most states of a tree are
    read for nothing.
    `judged`: for each position of `Refine.judge`, the state's token there and its probability.
    `handle`: where a later Refine goes on from; opaque to policies.
    """

    positions: Sequence[int]
    tokens: Sequence[int]
    confidences: Sequence[float]
    judged: tuple[Pick, ...] = ()
    handle: Any = None
    entropies: Sequence[float] = ()
    known: Sequence[PositionLogprobs | None] = ()

    @classmethod
    def of_picks(
        cls, picks: Iterable[Pick], judged: tuple[Pick, ...] = (), handle: Any = None, entropies: Sequence[float] = ()
    ) -> Prediction:
        """A reading with these picks for the masked positions, ascending, and their entropies."""
        positions, tokens, confidences, known = tuple(zip(*picks, strict=True)) or ((), (), (), ())
        return cls(positions, tokens, confidences, judged, handle, entropies, known)

    @property
    def picks(self) -> tuple[Pick, ...]:
        """For every masked position, ascending, the chosen token and its probability. Made anew by each call."""
        return self.picked(range(len(self.positions)))

    def picked(self, places: Iterable[int]) -> tuple[Pick, ...]:
        """The picks of masked positions by their numbers, from 0 on."""
        positions, tokens, confidences, known = self.positions, self.tokens, self.confidences, self.known
        return tuple([
            make(Pick, (positions[place], tokens[place], confidences[place], known[place] if known else None))
            for place in places
        ])  # fmt: skip

    def most_confident(self, count: int = 1) -> tuple[Pick, ...]:
        """The `count` picks of highest confidence; ties go to the lowest position."""
        confidences = self.confidences
        if count == 1:  # by far the most frequent
            place = confidences.index(max(confidences))
            known = self.known[place] if self.known else None
            return (make(Pick, (self.positions[place], self.tokens[place], confidences[place], known)),)
        return self.picked(sorted(range(len(confidences)), key=confidences.__getitem__, reverse=True)[:count])

    def above(self, threshold: float) -> tuple[Pick, ...]:
        """The picks of confidence > `threshold`. If there is none, the most confident pick."""
        sure = [place for place, confidence in enumerate(self.confidences) if confidence > threshold]
        return self.picked(sure) if sure else self.most_confident()

    def of(self, block: Block) -> Prediction:
        """The reading restricted to the masked positions of `block`, a later state than the one that was read."""
        masked, (positions, tokens, confidences, judged, handle, entropies, known) = block.tokens, self
        left = [place for place, position in enumerate(positions) if masked[position] == MASKED]
        if len(left) == len(positions):
            return self
        return make(
            Prediction,
            (
                [positions[place] for place in left],
                [tokens[place] for place in left],
                [confidences[place] for place in left],
                judged,
                handle,
                _those(entropies, left),
                _those(known, left),
            ),
        )


def _those(column: Sequence[_T], places: Iterable[int]) -> Sequence[_T]:
    return [column[place] for place in places] if column else ()


class Evaluate(NamedTuple):
    """Asks the backbone for one Prediction per state. `states[0]` is the canvas's block.

    `likeliest`: the least number of likeliest tokens that each pick must tell (`Pick.known`).
    `promises`: the tokens that each state after the first is expected to gain. If they are given, the engine may leave
    out the last states, and the Readings are those of the others.
    """

    states: tuple[Block, ...]
    likeliest: int = 0
    promises: tuple[float, ...] = ()


class Refine(NamedTuple):
    """Asks MRP for the Prediction of `state`, anchored on an earlier one.

    `judge`: revealed positions of `state` for whose tokens MRP also gives probabilities.
    """

    after: Prediction
    state: Block
    judge: tuple[int, ...] = ()


Query = Evaluate | Refine
Decoding = Generator[Query, tuple[Prediction, ...], None]
#: policy(canvas, params of the mode) -> the generator that decodes the canvas's block.
Policy = Callable[[Canvas, Any], Decoding]
