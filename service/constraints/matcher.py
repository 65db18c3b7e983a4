"""One answer's way through a compiled grammar: `decode/guide.py`'s protocols, over llguidance's matcher.

The matcher stands somewhere in the answer and goes back and forth between the states that are asked about. The library
knows no end tokens here: the answer may end wherever the matcher accepts. Control tokens are never allowed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import takewhile

import numpy as np
from llguidance import LLMatcher

from service.constraints.budget import A_SECOND, A_TOKEN, GrammarBudget, TenantReserve
from service.constraints.vocabulary import Bits, TokenVocabulary
from service.errors import ConstraintFailed

Tokens = tuple[int, ...]


class CompiledGrammar:
    """A grammar without errors. `start`: a matcher at its beginning, which is only copied.

    `account`: what its answers may take of the engine's thread; None: no limit.
    """

    def __init__(
        self, start: LLMatcher, vocabulary: TokenVocabulary, param: str, account: GrammarBudget | None = None
    ) -> None:
        self._start, self._vocabulary, self._param, self._account = start, vocabulary, param, account
        self._by_reserve: dict[TenantReserve, CompiledGrammar] = {}

    def within(self, reserve: TenantReserve) -> CompiledGrammar:
        """This grammar for answers of a tenant, with one account for all of them."""
        known = self._by_reserve.get(reserve)
        if known is None:
            known = CompiledGrammar(self._start, self._vocabulary, self._param, GrammarBudget(reserve))
            self._by_reserve[reserve] = known
        return known

    def open(self) -> GrammarMatcher:
        """A grammar at the beginning of an answer."""
        return GrammarMatcher(self._start.deep_copy(), self._vocabulary, self._param, self._account)


class GrammarMatcher:
    """The way of one answer. Implements `decode.guide.Grammar`. `param`: the request's field, for errors."""

    def __init__(
        self, matcher: LLMatcher, vocabulary: TokenVocabulary, param: str, account: GrammarBudget | None = None
    ) -> None:
        self._matcher, self._vocabulary, self._param, self._account = matcher, vocabulary, param, account
        self._at: Tokens = ()
        self._forced: dict[Tokens, Tokens] = {}
        self._length = self._farthest = 0

    def mask(self, tokens: Tokens) -> Bits | None:
        """The tokens that may come next, a bit each. None after an end token."""
        if self._ended(tokens):
            return None
        with self._at_state(tokens) as matcher:
            texts = self._vocabulary.text_bits
            bits = np.frombuffer(matcher.compute_bitmask(), np.uint8, len(texts)) & texts
            if matcher.is_accepting():
                bits |= self._vocabulary.eos_bits
            if not bits.any() and not matcher.is_error():
                raise self._failed(f"no token can come after {self._length + len(tokens)} tokens")
        return bits

    def forced(self, tokens: Tokens) -> Tokens:
        """The next tokens, where only one text can follow; an end token, where nothing else can."""
        if self._ended(tokens):
            return ()
        known = self._forced.get(tokens)
        if known is None:
            known = self._forced[tokens] = self._find_forced(tokens)
        return known

    def allowed(self, tokens: Tokens, following: Tokens) -> int:
        """How many of the following tokens may come next, one after the other."""
        if self._ended(tokens):
            return 0
        texts = list(takewhile(self._vocabulary.is_text, following))
        with self._at_state(tokens) as matcher:
            count = matcher.validate_tokens(texts) if texts else 0
        if count == len(texts) < len(following) and following[count] in self._vocabulary.eos:
            return count + self.complete((*tokens, *texts))
        return count

    def complete(self, tokens: Tokens) -> bool:
        """Whether the answer may end here. False where the matcher failed."""
        texts = tuple(takewhile(self._vocabulary.is_text, tokens))
        try:
            with self._at_state(texts, last=True) as matcher:
                return matcher.is_accepting()
        except ConstraintFailed:
            return False

    def advance(self, tokens: Tokens) -> None:
        """The tokens are final."""
        with self._at_state(tokens, last=True):
            self._at = ()
        self._length += len(tokens)
        self._forced.clear()

    def _find_forced(self, tokens: Tokens) -> Tokens:
        found: Tokens = ()
        while True:
            with self._at_state((*tokens, *found)) as matcher:
                if matcher.is_stopped():
                    return (*found, self._vocabulary.eos[0])
                more = matcher.compute_ff_tokens()
            texts = tuple(takewhile(self._vocabulary.is_text, more))  # a literal control token has to be spelled
            found += texts
            if not texts or len(texts) < len(more):
                return found

    def _ended(self, tokens: Tokens) -> bool:
        return bool(tokens) and tokens[-1] in self._vocabulary.eos

    @contextmanager
    def _at_state(self, tokens: Tokens, *, last: bool = False) -> Iterator[LLMatcher]:
        """The matcher after the tokens. ConstraintFailed if it cannot go there or fails there, or time is used up.

        `last`: the answer needs no more of it, so it may take what it takes.
        """
        if self._account is not None and self._account.used_up and not last:
            limits = f"{A_TOKEN * 1000:g} ms a token and {A_SECOND * 1000:g} ms a second"
            raise self._failed(f"it takes too long, allowed are {limits} of CPU time")
        before = time.thread_time()
        try:
            self._go(tokens)
            yield self._matcher
            if self._matcher.is_error():
                raise self._failed(_first_line(self._matcher.get_error()))
        except BaseException as error:
            if type(error).__name__ == "PanicException":  # of the library; it is no Exception
                raise self._failed("the library has failed") from None
            raise
        finally:
            self.pay(time.thread_time() - before, self._length + len(tokens))

    def pay(self, seconds: float, length: int) -> None:
        """Takes CPU seconds off its time, after the time that the tokens up to this length bring."""
        if self._account is not None:
            self._account.earn(max(0, length - self._farthest))
            self._account.pay(seconds)
        self._farthest = max(self._farthest, length)

    def _go(self, tokens: Tokens) -> None:
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
