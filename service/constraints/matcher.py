"""Grammars and their matchers by llguidance, for the protocols of `decode`.

A matcher follows one answer. The library's matcher stands at one state of the answer, and moves back and forth between
the states that policies ask for. The library has no end tokens: the answer may end wherever its matcher accepts.
Control tokens are never allowed.

Matchers run on the engine's thread, on which all requests wait. So a budget limits their CPU time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import takewhile

import numpy as np
from llguidance import LLMatcher

from service.constraints.constraint import Constraint
from service.constraints.vocabulary import TokenBitmask, TokenVocabulary
from service.errors import ConstraintFailed

TokenIds = tuple[int, ...]

#: CPU seconds that a token earns. Common schemas take a tenth of it with 150,000 tokens to choose from, 500 optional
#: properties of one object nearly all.
PER_TOKEN = 0.003
#: CPU seconds of a full reserve, and its gain in a second
RESERVE, PER_SECOND = 0.25, 0.05
#: CPU seconds of a new budget, and the most that a budget saves
_INITIAL, _MAX_SAVED = 0.02, 0.05


class TenantReserve:
    """The reserve of one tenant: a token bucket of CPU seconds that fills up slowly. `clock`: a clock in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._updated, self._seconds = clock, clock(), RESERVE

    @property
    def empty(self) -> bool:
        self.spend(0.0)
        return self._seconds <= 0

    def spend(self, seconds: float) -> None:
        """Subtracts CPU seconds, even below zero."""
        now = self._clock()
        self._seconds = min(RESERVE, self._seconds + (now - self._updated) * PER_SECOND) - seconds
        self._updated = now


class GrammarBudget:
    """The CPU time that all answers of one tenant's constraint share.

    Every token of an answer earns time. Time beyond that comes from the tenant's reserve. When both are used up,
    answers that need more end.
    """

    def __init__(self, reserve: TenantReserve) -> None:
        self._reserve, self._credit = reserve, _INITIAL

    @property
    def used_up(self) -> bool:
        return self._credit <= 0 and self._reserve.empty

    def earn(self, tokens: int) -> None:
        self._credit = min(_MAX_SAVED, self._credit + tokens * PER_TOKEN)

    def spend(self, seconds: float) -> None:
        self._credit -= seconds
        if self._credit < 0:
            self._reserve.spend(-self._credit)
            self._credit = 0.0


@dataclass(eq=False, slots=True)
class GuidanceGrammar:
    """A compiled grammar."""

    start: LLMatcher  # the library's matcher at the beginning of an answer, which is only copied
    vocabulary: TokenVocabulary
    constraint: Constraint  # the constraint as it is enforced, with its ignored keywords
    budget: GrammarBudget | None = None  # the CPU time of its answers; None: no limit
    _by_reserve: dict[TenantReserve, GuidanceGrammar] = field(default_factory=dict, init=False)

    def within(self, reserve: TenantReserve) -> GuidanceGrammar:
        """This grammar for a tenant, whose answers share one budget."""
        if reserve not in self._by_reserve:
            self._by_reserve[reserve] = replace(self, budget=GrammarBudget(reserve))
        return self._by_reserve[reserve]

    def open(self) -> GuidanceMatcher:
        return GuidanceMatcher(self)


class GuidanceMatcher:
    """Follows one answer."""

    def __init__(self, grammar: GuidanceGrammar) -> None:
        self._matcher, self._vocabulary = grammar.start.deep_copy(), grammar.vocabulary
        self._param, self._budget = grammar.constraint.param, grammar.budget
        self._tokens: TokenIds = ()  # the tokens after which the library's matcher stands
        self._forced: dict[TokenIds, TokenIds] = {}
        self._length = self._longest = 0

    def mask(self, tokens: TokenIds) -> TokenBitmask | None:
        """The tokens that may come next, a bit each. None after an end token."""
        if self._ended(tokens):
            return None
        with self._at_state(tokens) as matcher:
            texts = self._vocabulary.text_mask
            mask: TokenBitmask = np.frombuffer(matcher.compute_bitmask(), np.uint8, len(texts)) & texts
            if matcher.is_accepting():
                mask |= self._vocabulary.eos_mask
            if not mask.any() and not matcher.is_error():
                raise self._failed(f"no token can come after {self._length + len(tokens)} tokens")
        return mask

    def forced(self, tokens: TokenIds) -> TokenIds:
        if self._ended(tokens):
            return ()
        if tokens not in self._forced:
            self._forced[tokens] = self._find_forced(tokens)
        return self._forced[tokens]

    def allowed(self, tokens: TokenIds, following: TokenIds) -> int:
        if self._ended(tokens):
            return 0
        texts = list(takewhile(self._vocabulary.is_text, following))
        with self._at_state(tokens) as matcher:
            count = matcher.validate_tokens(texts) if texts else 0
        if count == len(texts) < len(following) and following[count] in self._vocabulary.eos:
            return count + self.complete((*tokens, *texts))
        return count

    def complete(self, tokens: TokenIds) -> bool:
        """Whether the answer may end here. False if the matcher failed."""
        texts = tuple(takewhile(self._vocabulary.is_text, tokens))
        try:
            with self._at_state(texts, last=True) as matcher:
                return matcher.is_accepting()
        except ConstraintFailed:
            return False

    def advance(self, tokens: TokenIds) -> None:
        with self._at_state(tokens, last=True):
            self._tokens = ()
        self._length += len(tokens)
        self._forced.clear()

    def _find_forced(self, tokens: TokenIds) -> TokenIds:
        forced: TokenIds = ()
        while True:
            with self._at_state((*tokens, *forced)) as matcher:
                if matcher.is_stopped():
                    return (*forced, self._vocabulary.eos[0])
                following = matcher.compute_ff_tokens()
            texts = tuple(takewhile(self._vocabulary.is_text, following))  # a literal control token has to be spelled
            forced += texts
            if not texts or len(texts) < len(following):
                return forced

    def _ended(self, tokens: TokenIds) -> bool:
        return bool(tokens) and tokens[-1] in self._vocabulary.eos

    @contextmanager
    def _at_state(self, tokens: TokenIds, *, last: bool = False) -> Iterator[LLMatcher]:
        """The library's matcher after the tokens. ConstraintFailed if it cannot get there, or if time is used up.

        `last`: whether the answer needs no further state; this state is then allowed without time.
        """
        if self._budget is not None and self._budget.used_up and not last:
            limits = f"{PER_TOKEN * 1000:g} ms a token and {PER_SECOND * 1000:g} ms a second"
            raise self._failed(f"it takes too long, allowed are {limits} of CPU time")
        before = time.thread_time()
        try:
            self._move_to(tokens)
            yield self._matcher
            if self._matcher.is_error():
                raise self._failed(_first_line(self._matcher.get_error()))
        except BaseException as error:
            if type(error).__name__ == "PanicException":  # Rust's, which is no Exception
                raise self._failed("the library has failed") from None
            raise
        finally:
            self.spend(time.thread_time() - before, self._length + len(tokens))

    def spend(self, seconds: float, length: int) -> None:
        """Subtracts CPU seconds from the budget, after the new tokens up to `length` have earned their time."""
        if self._budget is not None:
            self._budget.earn(max(0, length - self._longest))
            self._budget.spend(seconds)
        self._longest = max(self._longest, length)

    def _move_to(self, tokens: TokenIds) -> None:
        common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(self._tokens, tokens, strict=False)))
        if common < len(self._tokens):
            self._matcher.rollback(len(self._tokens) - common)
        following = list(tokens[common:])
        if following and not self._matcher.consume_tokens(following):
            raise self._failed(_first_line(self._matcher.get_error()))
        self._tokens = tokens

    def _failed(self, reason: str) -> ConstraintFailed:
        return ConstraintFailed(f"{self._param} cannot be followed: {reason}", param=self._param)


def _first_line(message: str) -> str:
    line = next(iter(message.splitlines()), "").removesuffix(" <non-verbose/>")
    return "nothing can come next" if line.startswith("NoExtension") else line
