"""One block of tokens while it is being decoded, and the record of how.

Pure Python: no tensors, no vocabulary, no mode. A position not decoded yet holds `MASKED`; the engine
puts the checkpoint's mask token there. Positions are relative to the block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from service.decode.draft_budget import DraftBudget

MASKED = -1

StepKind = Literal["denoise", "verify", "mrp"]


class Pick(NamedTuple):
    """A token chosen for a position. `confidence`: its full-vocabulary softmax probability, (0, 1]."""

    position: int
    token: int
    confidence: float


@dataclass(frozen=True, slots=True)
class Block:
    """The tokens of one block; `MASKED` where nothing is decoded yet."""

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
        """How many positions hold a token, the prompt's own included."""
        return len(self.tokens) - self.tokens.count(MASKED)

    @property
    def num_leading(self) -> int:
        """How many positions before the first masked one."""
        return self.tokens.index(MASKED) if MASKED in self.tokens else len(self.tokens)

    def reveal(self, picks: Iterable[Pick]) -> Block:
        """This block with the picks' tokens at their positions."""
        tokens = list(self.tokens)
        for position, token, _ in picks:
            tokens[position] = token
        return Block(tuple(tokens))

    def mask(self, positions: Iterable[int]) -> Block:
        """This block with the positions masked again."""
        hidden = set(positions)
        return Block(tuple(MASKED if p in hidden else token for p, token in enumerate(self.tokens)))


@dataclass(frozen=True, slots=True)
class Step:
    """What one decision did to a block: the unit of traces, and what all statistics are folded from.

    `kind`: whose output was decided on (`denoise`: one backbone row, `verify`: several, `mrp`).
    `drafted`: picks that were put to verification; the first `accepted` of them are the first of `revealed`.
    `promises`: of a tree's states, the tokens that its likelihood promised of each and those that it kept.
    """

    kind: StepKind
    revealed: tuple[Pick, ...] = ()
    revoked: tuple[int, ...] = ()
    drafted: tuple[Pick, ...] = ()
    accepted: int = 0
    promises: tuple[tuple[float, int], ...] = ()

    @property
    def proposed(self) -> int:
        """How many of the revealed tokens did not come from the forward of the backbone: MRP's, and accepted drafts."""
        return len(self.revealed) if self.kind == "mrp" else self.accepted


def _complete(block: Block) -> bool:
    return block.complete


@dataclass(slots=True)
class Canvas:
    """The block a policy works on: its present state and the steps that led there.

    `terms`: asked when drafts are made, what they may cost by then. `ends`: whether nothing is wanted beyond a state.
    """

    block: Block
    steps: list[Step] = field(default_factory=list)
    terms: Callable[[], DraftBudget] = DraftBudget
    ends: Callable[[Block], bool] = _complete

    def reveal(self, kind: StepKind, picks: Iterable[Pick]) -> None:
        """Fixes the picks and records the step."""
        self.record(Step(kind, tuple(picks)))

    def record(self, step: Step) -> None:
        """Fixes what a step reveals."""
        self.block = self.block.reveal(step.revealed)
        self.steps.append(step)

    def revoke(self, kind: StepKind, positions: Iterable[int]) -> None:
        """Masks positions again and records the step."""
        revoked = tuple(positions)
        self.block = self.block.mask(revoked)
        self.steps.append(Step(kind, revoked=revoked))
