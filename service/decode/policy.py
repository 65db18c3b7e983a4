"""The protocol of policies: a policy is a generator that decodes one block by asking for readings.

A policy yields `Evaluate` (the backbone reads states of the block) or `Refine` (MRP predicts the backbone's reading of
a newer state). It is sent one `Reading` per state. It reveals tokens on its canvas and returns when the block is
complete. At every `Evaluate` the canvas must hold only final tokens, since the engine may stop a policy there.
Policies use no tensors; tests drive them with a scripted oracle.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from itertools import repeat
from types import MappingProxyType
from typing import Any, NamedTuple

from service.decode.block import MASKED, Block, Known, Pick, make
from service.decode.canvas import Canvas

_NONE: Mapping[int, float] = MappingProxyType({})


class Reading(NamedTuple):
    """The model's output for one state of a block.

    `positions`: the masked ones, ascending. For each of them `tokens` has the chosen token, `confidences` its
    probability and `known` what else the request asked of it; `known` is empty if that is nothing. Picks are made only
    of what a policy looks at, since most states of a tree are read for nothing.
    `judged`: for each position of `Refine.judge`, the state's token there and its probability.
    `handle`: the hidden states, for a later Refine. `candidates`: the tokens that a later Refine may choose. Both are
    opaque to policies.
    `entropies`: position -> entropy of the full softmax, in nats. Empty if the mode's params do not need it.
    """

    positions: Sequence[int]
    tokens: Sequence[int]
    confidences: Sequence[float]
    judged: tuple[Pick, ...] = ()
    handle: Any = None
    entropies: Mapping[int, float] = _NONE
    candidates: Any = None
    known: Sequence[Known | None] = ()

    @classmethod
    def of_picks(
        cls,
        picks: Iterable[Pick],
        judged: tuple[Pick, ...] = (),
        handle: Any = None,
        entropies: Mapping[int, float] = _NONE,
    ) -> Reading:
        """A reading with these picks for the masked positions, ascending."""
        positions, tokens, confidences, known = tuple(zip(*picks, strict=True)) or ((), (), (), ())
        return cls(positions, tokens, confidences, judged, handle, entropies, known=known)

    @property
    def picks(self) -> tuple[Pick, ...]:
        """For every masked position, ascending, the chosen token and its probability. Made anew by each call."""
        return tuple(map(Pick, self.positions, self.tokens, self.confidences, self.known or repeat(None)))

    def pick(self, place: int) -> Pick:
        """The pick for the masked position number `place`."""
        known = self.known[place] if self.known else None
        return make(Pick, (self.positions[place], self.tokens[place], self.confidences[place], known))

    def most_confident(self, count: int = 1) -> tuple[Pick, ...]:
        """The `count` picks of highest confidence; ties go to the lowest position."""
        confidences = self.confidences
        if count == 1:
            return (self.pick(confidences.index(max(confidences))),)
        places = sorted(range(len(confidences)), key=confidences.__getitem__, reverse=True)
        return tuple(map(self.pick, places[:count]))

    def above(self, threshold: float) -> tuple[Pick, ...]:
        """The picks of confidence > `threshold`. If there is none, the most confident pick."""
        sure = [place for place, confidence in enumerate(self.confidences) if confidence > threshold]
        return tuple(map(self.pick, sure)) or self.most_confident()

    def left(self, block: Block) -> list[float]:
        """The confidences at the masked positions of `block`, a later state than the one that was read."""
        tokens = block.tokens
        return [sure for place, sure in zip(self.positions, self.confidences, strict=True) if tokens[place] == MASKED]

    def of(self, block: Block) -> Reading:
        """The reading restricted to the masked positions of `block`, a later state than the one that was read."""
        tokens = block.tokens
        left = [place for place, position in enumerate(self.positions) if tokens[position] == MASKED]
        return self._replace(
            positions=[self.positions[place] for place in left],
            tokens=[self.tokens[place] for place in left],
            confidences=[self.confidences[place] for place in left],
            known=[self.known[place] for place in left] if self.known else (),
        )


class Evaluate(NamedTuple):
    """Asks the backbone for one Reading per state. `states[0]` is the canvas's block.

    `likeliest`: the least number of likeliest tokens that each pick must tell (`Pick.known`).
    `promises`: the tokens that each state after the first is expected to gain. If they are given, the engine may leave
    out the last states, and the Readings are those of the others.
    """

    states: tuple[Block, ...]
    likeliest: int = 0
    promises: tuple[float, ...] = ()


class Refine(NamedTuple):
    """Asks MRP for the Reading of `state`, anchored on an earlier one.

    `judge`: revealed positions of `state` for whose tokens MRP also gives probabilities.
    """

    after: Reading
    state: Block
    judge: tuple[int, ...] = ()


Query = Evaluate | Refine
Decoding = Generator[Query, tuple[Reading, ...], None]
#: policy(canvas, params of the mode) -> the generator that decodes the canvas's block.
Policy = Callable[[Canvas, Any], Decoding]
