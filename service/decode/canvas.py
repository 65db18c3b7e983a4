"""The block on which a policy works: its current state, the steps that led to it, and the grammar of the answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from service.decode.block import Block, Pick, Step, StepKind, make
from service.decode.draft_budget import DraftBudget
from service.decode.block_grammar import BlockGrammar, forced_picks

if TYPE_CHECKING:
    from service.decode.policy import Prediction
    from service.decode.rules import Rule


def _complete(block: Block) -> bool:
    return block.complete


@dataclass(slots=True)
class Canvas:
    """The block on which a policy works.

    `budget`: called when drafts are made; returns what they may cost now. `ends`: whether the answer ends in a state,
    so that nothing after it is needed. `guide`: the grammar that the answer must keep to, None for a free answer.
    """

    block: Block
    steps: list[Step] = field(default_factory=list)
    budget: Callable[[], DraftBudget] = DraftBudget
    ends: Callable[[Block], bool] = _complete
    guide: BlockGrammar | None = None

    def rule(self, rule: Rule) -> Rule:
        """The rule by which this block is filled: with a guide, from left to right."""
        return rule if self.guide is None else rule.in_order

    def choose(self, rule: Rule, reading: Prediction, block: Block) -> tuple[Pick, ...]:
        """What a rule reveals of a state. With a guide: as far as its grammar allows, of a stale reading maybe none."""
        picks = rule(reading)
        return picks if self.guide is None else self.guide.chosen(block, picks)

    def after(self, block: Block, picks: Iterable[Pick]) -> Block:
        """The state after the picks, and after all that the grammar then forces."""
        state = block.reveal(picks)
        return state if self.guide is None else self.guide.closed(state)

    def leads(self, block: Block, picks: tuple[Pick, ...], state: Block) -> bool:
        """Whether the picks, from the leftmost masked position on if there is a grammar, lead from a block to a state.

        The grammar must allow them there.
        """
        guide = self.guide
        if guide is not None and (picks[0].position != block.num_leading or guide.chosen(block, picks) != picks):
            return False
        return self.after(block, picks) == state

    def begin(self) -> None:
        """Reveals what the grammar forces before anything is chosen."""
        self._move(self.after(self.block, ()), ())

    def reveal(self, kind: StepKind, picks: Iterable[Pick]) -> None:
        """Reveals the picks and records the step."""
        self.record(make(Step, (kind, tuple(picks), (), (), 0, ())))

    def record(self, step: Step, after: Block | None = None) -> None:
        """Reveals the picks of a step and records it. `after`: the state that it leads to, if it is known."""
        if self.guide is not None and not step.revealed:
            raise AssertionError("the grammar refuses what its own mask allows")
        self.steps.append(step)
        if self.guide is None:
            self.block = after or self.block.reveal(step.revealed)
        else:
            self._move(after or self.after(self.block, step.revealed), step.revealed)

    def remask(self, kind: StepKind, positions: Iterable[int]) -> None:
        """Masks positions again and records the step. With a guide, all that follows the first of them, too."""
        revoked = tuple(positions)
        if self.guide is not None:
            revoked = tuple(range(min(revoked), self.block.num_leading))
        self.block = self.block.mask(revoked)
        self.steps.append(Step(kind, remasked=revoked))

    def _move(self, after: Block, revealed: tuple[Pick, ...]) -> None:
        before, self.block = self.block, after
        if forced := forced_picks(before, after, revealed):
            self.steps.append(Step("forced", forced))
