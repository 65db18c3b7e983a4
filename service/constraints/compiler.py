"""Compiles constraints to grammars: after a trial of each, on threads of its own, and each one once.

The replica asks it before a request reaches the engine. A compiled grammar is kept for later requests of its owner.
"""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from copy import copy

from service.constraints.budget import TenantReserve
from service.constraints.constraint import NOBODY, Constraint, Owner
from service.constraints.grammars import compile_grammar
from service.constraints.kept import GrammarCache
from service.constraints.matcher import GuidanceGrammar
from service.constraints.trials import STACK, Trials
from service.constraints.vocabulary import TokenVocabulary
from service.errors import ConstraintNotAvailable, InvalidRequest

_THREADS = 2


class GrammarCompiler:
    """The grammars of one checkpoint, on one event loop. `vocabulary`: makes its vocabulary, for the first constraint.

    A tenant's constraints are compiled one after the other, so one tenant never has all threads.
    """

    def __init__(self, vocabulary: Callable[[], TokenVocabulary]) -> None:
        self._make_vocabulary = vocabulary
        self._vocabulary: TokenVocabulary | None = None
        self._trials: Trials | None = None
        self._kept = GrammarCache()
        self._reserves: defaultdict[str, TenantReserve] = defaultdict(TenantReserve)
        self._turns: dict[str, asyncio.Lock] = {}
        self._lock = threading.Lock()
        self._threads: ThreadPoolExecutor | None = None

    async def compile(self, constraint: Constraint, owner: Owner = NOBODY) -> GuidanceGrammar:
        """The grammar of a constraint, whose answers take time from their owner's reserve.

        InvalidRequest, which says where, if it is wrong, cannot be satisfied or takes too much to compile.
        ConstraintNotAvailable if this checkpoint cannot constrain answers.
        """
        async with self._turns.setdefault(owner.tenant, asyncio.Lock()):
            if (known := self.kept(constraint, owner)) is not None:
                return known
            self._threads = self._threads or _with_deep_stacks()
            work = asyncio.wrap_future(self._threads.submit(self._compile, constraint))
            key = (owner.salt, constraint)
            try:
                grammar, size = await work
            except InvalidRequest as error:
                if not isinstance(error, ConstraintNotAvailable):
                    self._kept.add(key, owner.tenant, copy(error))  # without its traceback
                raise
            self._kept.add(key, owner.tenant, grammar, size)
            return grammar.within(self._reserves[owner.tenant])

    def kept(self, constraint: Constraint, owner: Owner = NOBODY) -> GuidanceGrammar | None:
        """The grammar of a constraint that was compiled before, None if it was dropped. Raises why it was refused."""
        kept = self._kept.get((owner.salt, constraint))
        if isinstance(kept, InvalidRequest):
            raise copy(kept)  # raising an error extends its traceback, and this one is kept
        return None if kept is None else kept.within(self._reserves[owner.tenant])

    def close(self) -> None:
        """Ends the threads after what they compile now, and the trials."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
        if self._trials is not None:
            self._trials.close()

    def _compile(self, constraint: Constraint) -> tuple[GuidanceGrammar, int]:
        with self._lock:
            if self._vocabulary is None or self._trials is None:
                self._vocabulary = self._make_vocabulary()
                self._trials = Trials(self._vocabulary.definition)
        size = self._trials.run(constraint)
        return compile_grammar(constraint, self._vocabulary), size


def _with_deep_stacks() -> ThreadPoolExecutor:
    """Threads whose stacks are deep enough for any constraint within the limits."""
    pool = ThreadPoolExecutor(_THREADS, "constraints")
    before = threading.stack_size(STACK)
    try:
        ready = threading.Barrier(_THREADS + 1)
        for _ in range(_THREADS):
            pool.submit(ready.wait)
        ready.wait()
    finally:
        threading.stack_size(before)
    return pool
