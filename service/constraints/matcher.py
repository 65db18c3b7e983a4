"""Grammars and their matchers by llguidance, for the protocols of `decode`.

A matcher follows one answer. The library's matcher stands at one state of the answer, and moves back and forth between
the states that are looked at. The library knows no end tokens here: the answer may end wherever its matcher accepts.
Control tokens are never allowed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import takewhile

import numpy as np
from llguidance import LLMatcher

from service.constraints.budget import PER_SECOND, PER_TOKEN, GrammarBudget, TenantReserve
from service.constraints.vocabulary import TokenBitmask, TokenVocabulary
from service.errors import ConstraintFailed

TokenIds = tuple[int, ...]


class GuidanceGrammar:
    """A compiled grammar. `start`: the library's matcher at its beginning, which is only copied.

    `param`: the request's field, for errors. `budget`: the CPU time of its answers; None: no limit.
    """

    def __init__(
        self, start: LLMatcher, vocabulary: TokenVocabulary, param: str, budget: GrammarBudget | None = None
    ) -> None:
        self._start, self._vocabulary, self._param, self._budget = start, vocabulary, param, budget
        self._by_reserve: dict[TenantReserve, GuidanceGrammar] = {}

    def within(self, reserve: TenantReserve) -> GuidanceGrammar:
        """This grammar for a tenant, whose answers share one budget."""
        grammar = self._by_reserve.get(reserve)
        if grammar is None:
            grammar = GuidanceGrammar(self._start, self._vocabulary, self._param, GrammarBudget(reserve))
            self._by_reserve[reserve] = grammar
        return grammar

    def open(self) -> GuidanceMatcher:
        """A matcher at the beginning of an answer."""
        return GuidanceMatcher(self._start.deep_copy(), self._vocabulary, self._param, self._budget)


class GuidanceMatcher:
    """Follows one answer. `param`, `budget`: see `GuidanceGrammar`."""

    def __init__(
        self, matcher: LLMatcher, vocabulary: TokenVocabulary, param: str, budget: GrammarBudget | None = None
    ) -> None:
        self._matcher, self._vocabulary, self._param, self._budget = matcher, vocabulary, param, budget
        self._at: TokenIds = ()
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
        """The next tokens, where only one text can follow; an end token, where nothing else can."""
        if self._ended(tokens):
            return ()
        forced = self._forced.get(tokens)
        if forced is None:
            forced = self._forced[tokens] = self._find_forced(tokens)
        return forced

    def allowed(self, tokens: TokenIds, following: TokenIds) -> int:
        """How many of the following tokens may come next, one after the other."""
        if self._ended(tokens):
            return 0
        texts = list(takewhile(self._vocabulary.is_text, following))
        with self._at_state(tokens) as matcher:
            count = matcher.validate_tokens(texts) if texts else 0
        if count == len(texts) < len(following) and following[count] in self._vocabulary.eos:
            return count + self.complete((*tokens, *texts))
        return count

    def complete(self, tokens: TokenIds) -> bool:
        """Whether the answer may end here. False where the matcher failed."""
        texts = tuple(takewhile(self._vocabulary.is_text, tokens))
        try:
            with self._at_state(texts, last=True) as matcher:
                return matcher.is_accepting()
        except ConstraintFailed:
            return False

    def advance(self, tokens: TokenIds) -> None:
        """The tokens are final."""
        with self._at_state(tokens, last=True):
            self._at = ()
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
        """The library's matcher after the tokens. ConstraintFailed if it cannot go there, or if time is used up.

        `last`: the answer needs no further state, so this one is allowed without time.
        """
        if self._budget is not None and self._budget.used_up and not last:
            limits = f"{PER_TOKEN * 1000:g} ms a token and {PER_SECOND * 1000:g} ms a second"
            raise self._failed(f"it takes too long, allowed are {limits} of CPU time")
        before = time.thread_time()
        try:
            self._go(tokens)
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
        """Takes CPU seconds off the budget, after new tokens up to `length` have earned theirs."""
        if self._budget is not None:
            self._budget.earn(max(0, length - self._longest))
            self._budget.spend(seconds)
        self._longest = max(self._longest, length)

    def _go(self, tokens: TokenIds) -> None:
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(self._at, tokens, strict=False)))
        if same < len(self._at):
            self._matcher.rollback(len(self._at) - same)
        following = list(tokens[same:])
        if following and not self._matcher.consume_tokens(following):
            raise self._failed(_first_line(self._matcher.get_error()))
        self._at = tokens

    def _failed(self, reason: str) -> ConstraintFailed:
        return ConstraintFailed(f"{self._param} cannot be followed: {reason}", param=self._param)


def _first_line(message: str) -> str:
    line = next(iter(message.splitlines()), "").removesuffix(" <non-verbose/>")
    return "nothing can come next" if line.startswith("NoExtension") else line
