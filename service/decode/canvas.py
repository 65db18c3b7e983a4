"""The block on which a policy works: its current state, the steps that led to it, and the grammar of the answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from service.decode.block import Block, Pick, Step, StepKind, new_tuple
from service.decode.block_grammar import BlockGrammar, forced_picks

if TYPE_CHECKING:
    from service.decode.policy import Prediction
    from service.decode.rules import Rule


class DraftBudget(NamedTuple):
    """The cost that the drafts of one round may have. The engine sets it for `speculative` with `mrp_steps: auto`.

    `row`: the cost of one more row in the next forward, as the number of tokens that could be decoded in its time.
    `states`: the most states to verify. `mrp_steps`: the most MRP forwards for drafting them. By default nothing is
    drafted.
    """

    row: float = 1.0
    states: int = 0
    mrp_steps: int = 0

    def at_most(self, states: int) -> DraftBudget:
        """The budget with at most `states` states."""
        return self if self.states <= states else DraftBudget(self.row, states, self.mrp_steps)


def _complete(block: Block) -> bool:
    return block.complete


@dataclass(slots=True)
class Canvas:
    """The block on which a policy works.

    `budget`: returns the current draft budget. `ends`: whether the answer ends in a state, so that nothing after it is
    needed. `grammar`: the grammar of the answer in this block, None for a free answer.
    """

    block: Block
    steps: list[Step] = field(default_factory=list)
    budget: Callable[[], DraftBudget] = DraftBudget
    ends: Callable[[Block], bool] = _complete
    grammar: BlockGrammar | None = None

    def rule(self, rule: Rule) -> Rule:
        """The rule by which this block is filled: with a grammar, from left to right."""
        return rule if self.grammar is None else rule.in_order

    def choose(self, rule: Rule, prediction: Prediction, block: Block) -> tuple[Pick, ...]:
        """The picks that a rule reveals in a state. With a grammar: the allowed first ones, perhaps none."""
        picks = rule(prediction)
        return picks if self.grammar is None else self.grammar.allowed(block, picks)

    def after(self, block: Block, picks: Iterable[Pick]) -> Block:
        """The state after the picks, and after all that the grammar then forces."""
        state = block.reveal(picks)
        return state if self.grammar is None else self.grammar.closed(state)

    def leads(self, block: Block, picks: tuple[Pick, ...], state: Block) -> bool:
        """Whether revealing `picks` in `block` gives `state`.

        With a grammar, they must begin at the leftmost masked position and be allowed.
        """
        grammar = self.grammar
        if grammar is not None and (picks[0].position != block.num_leading or grammar.allowed(block, picks) != picks):
            return False
        return self.after(block, picks) == state

    def begin(self) -> None:
        """Reveals what the grammar forces before anything is chosen."""
        self._move(self.after(self.block, ()), ())

    def reveal(self, kind: StepKind, picks: Iterable[Pick]) -> None:
        """Reveals the picks and records the step."""
        self.record(new_tuple(Step, (kind, tuple(picks), (), (), 0, ())))

    def record(self, step: Step, after: Block | None = None) -> None:
        """Reveals the picks of a step and records it. `after`: the state that follows, None: it is computed."""
        if self.grammar is not None and not step.revealed:
            raise AssertionError("the grammar refuses what its own mask allows")
        self.steps.append(step)
        if self.grammar is None:
            self.block = after or self.block.reveal(step.revealed)
        else:
            self._move(after or self.after(self.block, step.revealed), step.revealed)

    def remask(self, kind: StepKind, positions: Iterable[int]) -> None:
        """Masks positions again and records the step. With a grammar, it masks all after the first of them, too."""
        remasked = tuple(positions)
        if self.grammar is not None:
            remasked = tuple(range(min(remasked), self.block.num_leading))
        self.block = self.block.remask(remasked)
        self.steps.append(Step(kind, remasked=remasked))

    def _move(self, after: Block, revealed: tuple[Pick, ...]) -> None:
        before, self.block = self.block, after
        if forced := forced_picks(before, after, revealed):
            self.steps.append(Step("forced", forced))
