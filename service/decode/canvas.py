"""The canvas of a policy: the block's current state, its steps so far, and the grammar of the answer in the block.

`GrammarMatcher` is the interface of grammars: `service/constraints` implements it, and the engine opens a matcher for
each request with a constraint. A `BlockGrammar` is its view of one block. With a grammar a block is filled from left to
right, since only the leftmost masked position has a known prefix. A mode then decides only the number of positions that
a forward fills.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from msgspec.structs import replace

from service.decode.block import MASKED, Block, Draft, Pick, Step, StepKind
from service.decode.prompt_lookup import PromptLookup

if TYPE_CHECKING:
    from service.decode.policy import Prediction
    from service.decode.rules import Rule


#: tokens of an answer since its last final block
AnswerTokens = tuple[int, ...]

#: the confidence of a token that the grammar forces
_CERTAIN = 1.0


class GrammarMatcher(Protocol):
    """The state of one answer in its grammar. `tokens`: the answer's tokens since the last `advance`.

    Every method may raise an MrpServeError, which ends the request. All but `advance` only look ahead.
    """

    def mask(self, tokens: AnswerTokens) -> Any:
        """The tokens that may come next, opaque to policies. None after an end token."""

    def forced(self, tokens: AnswerTokens) -> AnswerTokens:
        """The next tokens if only one text can follow; an end token if no text can follow."""

    def allowed(self, tokens: AnswerTokens, following: AnswerTokens) -> int:
        """The number of `following` tokens that may come next, one after the other. Nothing follows an end token."""

    def complete(self, tokens: AnswerTokens) -> bool:
        """Whether the answer may end here."""

    def advance(self, tokens: AnswerTokens) -> None:
        """Makes the tokens final."""


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

    def tokens(self, block: Block) -> AnswerTokens:
        return block.tokens[self.head : block.num_leading]

    def allowed(self, block: Block, picks: Sequence[Pick]) -> tuple[Pick, ...]:
        """The first picks that the grammar allows one after the other. They end before a forced token.

        `picks`: picks from the leftmost masked position on, without gaps.
        """
        before = self.tokens(block)
        allowed = self.matcher.allowed(before, tuple(pick.token for pick in picks))
        for count in range(1, allowed):
            if self.matcher.forced((*before, *(pick.token for pick in picks[:count]))):
                return tuple(picks[:count])
        return tuple(picks[:allowed])

    def closed(self, block: Block) -> Block:
        """The block with the tokens that the grammar forces at its masked positions."""
        if block.complete:
            return block
        positions = range(block.num_leading, len(block.tokens))
        forced = zip(positions, self.matcher.forced(self.tokens(block)), strict=False)
        return block.reveal(Pick(position, token, _CERTAIN) for position, token in forced)


class DraftBudget(NamedTuple):
    """The cost that the drafts of one round may have. The engine sets it for `speculative` with `mrp_steps: auto`.

    By default nothing is drafted.
    """

    row: float = 1.0  # the cost of one more row in the next forward: the tokens that could be decoded in its time
    states: int = 0  # the most states to verify
    mrp_steps: int = 0  # the most MRP forwards for drafting them
    device_numbers: tuple[int, ...] = ()  # the numbers of the drafts, if the device has made them (`drafts.by_rule`)
    copied: int = 0  # the most tokens of a draft that are copied from the request's text


class EditTokens(NamedTuple):
    """The tokens by which a model deletes a position, and splits it: a mask comes before its token."""

    delete: int
    split: int


def _no_text() -> PromptLookup:
    return PromptLookup(())


@dataclass(slots=True)
class Canvas:
    """The block on which a policy works."""

    block: Block
    steps: list[Step] = field(default_factory=list)
    budget: Callable[[], DraftBudget] = DraftBudget  # returns the current draft budget
    #: whether the answer ends in a state: nothing after it is needed
    ends: Callable[[Block], bool] = attrgetter("complete")
    grammar: BlockGrammar | None = None  # the grammar of the answer in this block, None for a free answer
    #: the first picks that complete no bad word together, at least one; None if the request has none
    without_bad_words: Callable[[Block, tuple[Pick, ...]], tuple[Pick, ...]] | None = None
    edit_tokens: EditTokens | None = None  # None: nothing is inserted or deleted
    in_order: bool = False  # whether the block is filled from left to right, as in a causal model
    carried: Mapping[Block, Draft] = field(default_factory=dict)  # its drafts, from a forward of the block before
    lookup: Callable[[], PromptLookup] = _no_text  # returns the text of the request, from which drafts are copied

    def rule(self, rule: Rule) -> Rule:
        """The rule by which this block is filled: with a grammar, from left to right."""
        return rule.in_order if self.in_order or self.grammar is not None else rule

    def choose(self, rule: Rule, prediction: Prediction, block: Block) -> tuple[Pick, ...]:
        """The picks that a rule reveals in a state, or the first of them that are allowed.

        With a grammar perhaps none, and none of a prediction that reads nothing.
        """
        if not prediction.positions:
            return ()
        picks = rule(prediction)
        if self.without_bad_words is not None:
            picks = self.without_bad_words(block, picks)
        return picks if self.grammar is None else self.grammar.allowed(block, picks)

    def after(self, block: Block, picks: Iterable[Pick]) -> Block:
        """The state after the picks, and after the tokens that the grammar then forces."""
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
        """Reveals the tokens that the grammar forces at the block's beginning."""
        self._move(self.after(self.block, ()), ())

    def reveal(self, kind: StepKind, picks: Iterable[Pick]) -> None:
        self.record(Step(kind, tuple(picks)))

    def record(self, step: Step, after: Block | None = None) -> None:
        """Reveals the picks of a step and records it. `after`: the state that follows, None: it is computed."""
        self.steps.append(step)
        if self.grammar is None:
            self.block = after or (self.block.move(step.moved) if step.moved else self.block).reveal(step.revealed)
        elif step.revealed:
            self._move(after or self.after(self.block, step.revealed), step.revealed)
        else:
            raise AssertionError("the grammar refuses what its own mask allows")

    def remask(self, kind: StepKind, positions: Iterable[int]) -> None:
        """Masks positions again and records the step. With a grammar, it also masks all later positions."""
        remasked = tuple(positions)
        if self.grammar is not None:
            remasked = tuple(range(min(remasked), self.block.num_leading))
        self.block = self.block.remask(remasked)
        self.steps.append(Step(kind, remasked=remasked))

    def edit(self, kind: StepKind, picks: Iterable[Pick], moved: tuple[int, ...] = ()) -> None:
        """Reveals picks, some of which replace tokens, and records the step. `moved`: as of `Step`.

        Positions whose token is replaced, deleted or cut off count as remasked.
        """
        tokens = self.block.tokens
        revealed = tuple(pick for pick in picks if pick.token != tokens[pick.position])
        remasked = [pick.position for pick in revealed if tokens[pick.position] != MASKED]
        if moved:
            targets = {source: position for position, source in enumerate(moved)}
            left_out = {
                position for position, token in enumerate(tokens) if token != MASKED and position not in targets
            }
            remasked = sorted(left_out.union(remasked))
            revealed = tuple(replace(p, position=targets[p.position]) for p in revealed if p.position in targets)
        self.record(Step(kind, revealed, tuple(remasked), moved=moved))

    def _move(self, after: Block, revealed: tuple[Pick, ...]) -> None:
        before, self.block = self.block, after
        positions, chosen = range(before.num_leading, after.num_leading), {pick.position for pick in revealed}
        if forced := [Pick(i, after.tokens[i], _CERTAIN) for i in positions if i not in chosen]:
            self.steps.append(Step("forced", tuple(forced)))
