"""One block of tokens while it is decoded, and the record of its decoding steps.

A masked position holds `MASKED`, which the engine replaces by the checkpoint's mask token. Positions are relative to
the block.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple, TypeVar

from msgspec import Struct

MASKED = -1

_T = TypeVar("_T")


#: The output that decided: one backbone row, several backbone rows, MRP's. `forced`: the grammar allowed one text only.
StepKind = Literal["denoise", "verify", "mrp", "forced"]


class PositionLogprobs(NamedTuple):
    """The log-probabilities (natural) at a position that a request wants (`LogprobsRequest`)."""

    top: tuple[tuple[int, float], ...] = ()  # (token, log-probability) of the top tokens, in descending order
    by_id: tuple[float, ...] = ()  # the log-probabilities of the request's `token_ids`
    confidences: tuple[float, ...] = ()  # those of the top tokens, as of `Pick`


class Pick(Struct, frozen=True, array_like=True, gc=False):
    """A token chosen for a position."""

    position: int
    token: int
    #: its full-vocabulary softmax probability, (0, 1], at temperature 1, or at a higher one of the request
    confidence: float
    logprobs: PositionLogprobs | None = None  # those at the position, None if the request wants none
    logprob: float | None = None  # at the request's temperature, None if it is the confidence's logarithm


class Block(Struct, frozen=True, gc=False):
    """The tokens of one block. Masked positions hold `MASKED`."""

    tokens: tuple[int, ...]

    @property
    def masked(self) -> tuple[int, ...]:
        """The masked positions, ascending."""
        return tuple([position for position, token in enumerate(self.tokens) if token == MASKED])

    @property
    def complete(self) -> bool:
        return MASKED not in self.tokens

    @property
    def num_revealed(self) -> int:
        """The number of positions that hold a token, the prompt's tokens included."""
        return len(self.tokens) - self.tokens.count(MASKED)

    @property
    def num_leading(self) -> int:
        """The number of positions before the first masked one."""
        return self.tokens.index(MASKED) if MASKED in self.tokens else len(self.tokens)

    def reveal(self, picks: Iterable[Pick]) -> Block:
        """A copy of this block with the picks' tokens at their positions."""
        tokens = list(self.tokens)
        for pick in picks:
            tokens[pick.position] = pick.token
        return Block(tuple(tokens))

    def remask(self, positions: Iterable[int]) -> Block:
        """A copy of this block with the positions masked again."""
        hidden = set(positions)
        return Block(tuple(MASKED if p in hidden else token for p, token in enumerate(self.tokens)))

    def move(self, sources: Iterable[int]) -> Block:
        """A copy of this block that takes each position's token from another position. `sources`: as `Step.moved`."""
        return Block(tuple(MASKED if source < 0 else self.tokens[source] for source in sources))


class Draft(Struct, frozen=True, gc=False):
    """A state to be verified."""

    number: int  # its index among the drafts, from 1 on
    picks: tuple[Pick, ...]  # they lead to it from the state before
    gain: float = 0.0  # the expected number of tokens gained by verifying it; a chain does not estimate it
    device_number: int = 0  # its number if the device has made it, too (`drafts.by_rule`)


class Step(Struct, frozen=True, array_like=True, gc=False):
    """One decision and its effect on a block. Traces and statistics are made from steps."""

    kind: StepKind
    revealed: tuple[Pick, ...] = ()
    remasked: tuple[int, ...] = ()  # before `revealed`: a position of both has got another token
    drafted: tuple[Pick, ...] = ()  # the verified picks
    accepted: int = 0  # so many of the first verified picks are the first picks of `revealed`
    gains: tuple[tuple[float, int], ...] = ()  # (expected, actual) tokens gained by each state of a tree of drafts
    sizes: tuple[int, ...] = ()  # the numbers of picks of the plain mode's steps, in order. Empty: it is one step
    #: Insertions and deletions, after `remasked` and before `revealed`: the position from which each position takes its
    #: token, -1 for a new mask. Empty: no token moves
    moved: tuple[int, ...] = ()

    def move(self, values: dict[int, _T]) -> dict[int, _T]:
        """Values by the position of their tokens, after the step's insertions and deletions."""
        if not self.moved:
            return values
        return {position: values[source] for position, source in enumerate(self.moved) if source in values}

    @property
    def proposed(self) -> int:
        """The number of revealed tokens that were proposed before the forward: MRP's picks and accepted drafts."""
        return len(self.revealed) if self.kind == "mrp" else self.accepted
