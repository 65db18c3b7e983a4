"""One block of tokens while it is decoded, and the record of its decoding steps.

A position that is not decoded yet holds `MASKED`, which the engine replaces by the checkpoint's mask token. Positions
are relative to the block.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

MASKED = -1

_T = TypeVar("_T")


class _Make(Protocol):
    def __call__(self, kind: type[_T], fields: tuple[Any, ...], /) -> _T: ...


#: Makes a named tuple of all of its fields in half the time of its own call. Used where thousands are made in a step.
make: _Make = tuple.__new__  # type: ignore[assignment]

StepKind = Literal["denoise", "verify", "mrp", "forced"]


class PositionLogprobs(NamedTuple):
    """What a request asked of a position besides its token: log-probabilities (natural) of the reading.

    `likeliest`: tokens and their log-probabilities, the likeliest first. `given`: those of the tokens that were named.
    """

    likeliest: tuple[tuple[int, float], ...] = ()
    given: tuple[float, ...] = ()


class Pick(NamedTuple):
    """A token chosen for a position. `confidence`: its full-vocabulary softmax probability, (0, 1].

    `known`: what else the request asked of the position, None if nothing.
    """

    position: int
    token: int
    confidence: float
    known: PositionLogprobs | None = None


class Block(NamedTuple):
    """The tokens of one block. Positions that are not decoded yet hold `MASKED`."""

    tokens: tuple[int, ...]

    @property
    def masked(self) -> tuple[int, ...]:
        """Positions not decoded yet, ascending."""
        return tuple(position for position, token in enumerate(self.tokens) if token == MASKED)

    @property
    def complete(self) -> bool:
        """Whether no position is masked."""
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
            tokens[pick[0]] = pick[1]
        return make(Block, (tuple(tokens),))

    def mask(self, positions: Iterable[int]) -> Block:
        """A copy of this block with the positions masked again."""
        hidden = set(positions)
        return Block(tuple(MASKED if p in hidden else token for p, token in enumerate(self.tokens)))


class Step(NamedTuple):
    """What one decision did to a block. Traces and statistics are made from steps.

    `kind`: the output that the decision used (`denoise`: one backbone row, `verify`: several backbone rows, `mrp`).
    `forced`: none, the answer's grammar left one text only.
    `drafted`: the picks that were verified; the first `accepted` of them are the first of `revealed`.
    `promises`: for each state of a tree of drafts, the expected tokens and the tokens that were kept.
    """

    kind: StepKind
    revealed: tuple[Pick, ...] = ()
    revoked: tuple[int, ...] = ()
    drafted: tuple[Pick, ...] = ()
    accepted: int = 0
    promises: tuple[tuple[float, int], ...] = ()

    @property
    def proposed(self) -> int:
        """The number of revealed tokens that were proposed before the forward: MRP's picks and accepted drafts."""
        return len(self.revealed) if self.kind == "mrp" else self.accepted
