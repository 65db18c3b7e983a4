"""The grammar of an answer, as policies see it: the tokens that may follow, and those that must.

`GrammarMatcher` is the seam: `service/constraints` implements it, and the engine opens one for each request that has a
constraint. A `BlockGrammar` is its view of one block. With a grammar a block is filled from left to right, since only
the leftmost masked position has a known prefix. A mode then decides only how many positions a forward fills.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from service.decode.block import Block, Pick

Tokens = tuple[int, ...]

#: The confidence of a token that the grammar forces.
_CERTAIN = 1.0


class GrammarMatcher(Protocol):
    """The state of one answer in its grammar. `tokens`: the answer's tokens after those given to `advance`.

    Every method may raise an MrpServeError, which ends the request. All but `advance` only look ahead.
    """

    def mask(self, tokens: Tokens) -> Any:
        """The tokens that may come next, opaque to policies. None after an end token."""

    def forced(self, tokens: Tokens) -> Tokens:
        """The next tokens, where only one text can follow; an end token, where nothing else can."""

    def allowed(self, tokens: Tokens, following: Tokens) -> int:
        """The number of `following` tokens that may come next, one after the other. Nothing follows an end token."""

    def complete(self, tokens: Tokens) -> bool:
        """Whether the answer may end here."""

    def advance(self, tokens: Tokens) -> None:
        """The tokens are final. Other calls count from here."""


class CompiledGrammar(Protocol):
    """A compiled grammar, from which each request opens its own matcher."""

    def open(self) -> GrammarMatcher:
        """A matcher at the beginning of an answer."""


@dataclass(frozen=True, slots=True)
class BlockGrammar:
    """The grammar of the answer in one block. `head`: the number of positions before the answer."""

    matcher: GrammarMatcher
    head: int

    def mask(self, block: Block) -> Any:
        """The tokens that may stand at the leftmost masked position. None if the block is complete."""
        return None if block.complete else self.matcher.mask(self.tokens(block))

    def tokens(self, block: Block) -> Tokens:
        """The tokens of the answer in a state of the block."""
        return block.tokens[self.head : block.num_leading]

    def allowed(self, block: Block, picks: Sequence[Pick]) -> tuple[Pick, ...]:
        """The first of the picks that the grammar allows after each other. They end before a forced token.

        `picks`: from the leftmost masked position on, without gaps.
        """
        before = self.tokens(block)
        allowed = self.matcher.allowed(before, tuple(pick.token for pick in picks))
        for count in range(1, allowed):
            if self.matcher.forced((*before, *(pick.token for pick in picks[:count]))):
                return tuple(picks[:count])
        return tuple(picks[:allowed])

    def closed(self, block: Block) -> Block:
        """The block with all that the grammar forces at its masked positions."""
        if block.complete:
            return block
        positions = range(block.num_leading, len(block.tokens))
        forced = zip(positions, self.matcher.forced(self.tokens(block)), strict=False)
        return block.reveal(Pick(position, token, _CERTAIN) for position, token in forced)


def forced_picks(before: Block, after: Block, revealed: Iterable[Pick]) -> tuple[Pick, ...]:
    """The picks from a state to a later one that are not among the revealed ones."""
    others = {pick.position for pick in revealed}
    return tuple(
        Pick(position, after.tokens[position], _CERTAIN)
        for position in range(before.num_leading, after.num_leading)
        if position not in others
    )
