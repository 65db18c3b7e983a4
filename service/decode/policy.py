"""The protocol of policies: a policy is a generator that decodes one block by asking for readings.

A policy yields `Evaluate` (the backbone reads states of the block) or `Refine` (MRP predicts the backbone's reading of
a newer state). It is sent one `Reading` per state. It reveals tokens on its canvas and returns when the block is
complete. At every `Evaluate` the canvas must hold only final tokens, since the engine may stop a policy there.
Policies use no tensors; tests drive them with a scripted oracle.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from operator import itemgetter
from types import MappingProxyType
from typing import Any, NamedTuple

from service.decode.block import MASKED, Block, Pick
from service.decode.canvas import Canvas

_NONE: Mapping[int, float] = MappingProxyType({})
_CONFIDENCE = itemgetter(Pick._fields.index("confidence"))


class Reading(NamedTuple):
    """The model's output for one state of a block.

    `picks`: for every masked position, ascending, the chosen token and its probability.
    `judged`: for each position of `Refine.judge`, the state's token there and its probability.
    `handle`: the hidden states, for a later Refine. `candidates`: the tokens that a later Refine may choose. Both are
    opaque to policies.
    `entropies`: position -> entropy of the full softmax, in nats. Empty if the mode's params do not need it.
    """

    picks: tuple[Pick, ...]
    judged: tuple[Pick, ...] = ()
    handle: Any = None
    entropies: Mapping[int, float] = _NONE
    candidates: Any = None

    def most_confident(self, count: int = 1) -> tuple[Pick, ...]:
        """The `count` picks of highest confidence; ties go to the lowest position."""
        if count == 1:
            return (max(self.picks, key=_CONFIDENCE),)
        return tuple(sorted(self.picks, key=lambda pick: -pick.confidence)[:count])

    def above(self, threshold: float) -> tuple[Pick, ...]:
        """The picks of confidence > `threshold`. If there is none, the most confident pick."""
        return tuple(pick for pick in self.picks if pick.confidence > threshold) or self.most_confident()

    def of(self, block: Block) -> Reading:
        """The reading restricted to the masked positions of `block`, a later state than the one that was read."""
        tokens = block.tokens
        return self._replace(picks=tuple([pick for pick in self.picks if tokens[pick[0]] == MASKED]))


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
