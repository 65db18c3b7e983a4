"""Compiles constraints to grammars: after a trial of each, on threads of its own, with a cache.

The replica compiles a constraint before its request reaches the engine. The grammar is cached for later requests of its
owner.
"""

import asyncio
import threading
import time
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from typing import NamedTuple

from service.constraints.constraint import NOBODY, Constraint, Owner
from service.constraints.grammars import compile_grammar
from service.constraints.matcher import GuidanceGrammar, TenantReserve
from service.constraints.trials import MAX_BYTES, STACK, Trials
from service.constraints.vocabulary import TokenVocabulary
from service.errors import ConstraintNotAvailable, InvalidRequest

_THREADS = 2
#: the most bytes of the cache, and of one tenant's grammars in it
_MAX_CACHE, _MAX_TENANT = 4 * MAX_BYTES, MAX_BYTES
#: the fewest bytes that a grammar counts, which bounds the number of grammars
_MIN_SIZE = 256 * 1024
#: the seconds that an error is cached: its reason may have been the load of the machine
_ERROR_S = 60.0


class GrammarCompiler:
    """Compiles constraints for one checkpoint, on one event loop. `vocabulary`: makes the vocabulary, called once.

    A tenant's constraints are compiled one after the other, so a tenant never occupies all threads.
    """

    def __init__(self, vocabulary: Callable[[], TokenVocabulary]) -> None:
        self._make_vocabulary = vocabulary
        self._vocabulary: TokenVocabulary | None = None
        self._trials: Trials | None = None
        self._cache = GrammarCache()
        self._reserves: defaultdict[str, TenantReserve] = defaultdict(TenantReserve)
        self._turns: dict[str, asyncio.Lock] = {}
        self._lock = threading.Lock()
        self._threads: ThreadPoolExecutor | None = None

    async def compile(self, constraint: Constraint, owner: Owner = NOBODY) -> GuidanceGrammar:
        """The grammar of a constraint. The time of its answers counts against their owner's reserve.

        InvalidRequest, with the position of the error, if it is wrong, unsatisfiable or too expensive to compile.
        ConstraintNotAvailable if this checkpoint cannot constrain answers.
        """
        async with self._turns.setdefault(owner.tenant, asyncio.Lock()):
            if (grammar := self.cached(constraint, owner)) is not None:
                return grammar
            self._threads = self._threads or _threads_with_deep_stacks()
            compiling = asyncio.wrap_future(self._threads.submit(self._compile, constraint))
            key = (owner.salt, constraint)
            try:
                grammar, size = await compiling
            except InvalidRequest as error:
                if not isinstance(error, ConstraintNotAvailable):
                    self._cache.add(key, owner.tenant, copy(error))  # without its traceback
                raise
            self._cache.add(key, owner.tenant, grammar, size)
            return grammar.within(self._reserves[owner.tenant])

    def cached(self, constraint: Constraint, owner: Owner = NOBODY) -> GuidanceGrammar | None:
        """The cached grammar of a constraint, None if there is none. Raises a cached error."""
        cached = self._cache.get((owner.salt, constraint))
        if isinstance(cached, InvalidRequest):
            raise copy(cached)  # raising an error extends its traceback, and the cached error stays
        return None if cached is None else cached.within(self._reserves[owner.tenant])

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
        if self._trials is not None:
            self._trials.close()

    def _compile(self, constraint: Constraint) -> tuple[GuidanceGrammar, int]:
        with self._lock:
            if self._vocabulary is None or self._trials is None:
                self._vocabulary = self._make_vocabulary()
                self._trials = Trials(self._vocabulary.definition)
        trial = self._trials.run(constraint)
        return compile_grammar(trial.constraint, self._vocabulary), trial.size


def _threads_with_deep_stacks() -> ThreadPoolExecutor:
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


class _CacheEntry(NamedTuple):
    tenant: str
    result: GuidanceGrammar | InvalidRequest
    size: int
    since: float


class GrammarCache:
    """The most recently used grammars, limited by their sizes, and for a while the errors of refused constraints."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._entries: OrderedDict[Hashable, _CacheEntry] = OrderedDict()
        self._sizes: Counter[str] = Counter()
        self._clock = clock

    def get(self, key: Hashable) -> GuidanceGrammar | InvalidRequest | None:
        """The cached grammar or error, None if there is none. It becomes the most recently used entry."""
        if (entry := self._entries.get(key)) is None:
            return None
        if isinstance(entry.result, InvalidRequest) and self._clock() - entry.since > _ERROR_S:
            self._drop(key)
            return None
        self._entries.move_to_end(key)
        return entry.result

    def add(self, key: Hashable, tenant: str, result: GuidanceGrammar | InvalidRequest, size: int = 0) -> None:
        """Caches a result of `size` bytes, and drops results beyond the limits."""
        if key in self._entries:
            self._drop(key)
        size = max(_MIN_SIZE, size)
        while self._sizes[tenant] and self._sizes[tenant] + size > _MAX_TENANT:
            self._drop(next(key for key, entry in self._entries.items() if entry.tenant == tenant))
        while self._entries and self._sizes.total() + size > _MAX_CACHE:
            self._drop(next(iter(self._entries)))
        self._entries[key] = _CacheEntry(tenant, result, size, self._clock())
        self._sizes[tenant] += size

    def _drop(self, key: Hashable) -> None:
        dropped = self._entries.pop(key)
        self._sizes[dropped.tenant] -= dropped.size
        self._sizes = +self._sizes
