"""Compiles constraints to grammars: on threads of its own, bounded in time and size, each one once.

The replica asks it before a request reaches the engine. A compiled grammar is kept for later requests.
"""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from copy import copy

from service.constraints.constraint import Constraint
from service.constraints.grammars import compile_grammar
from service.constraints.matcher import CompiledGrammar
from service.constraints.vocabulary import Vocabulary
from service.errors import InvalidRequest, MrpServeError

#: compiled grammars that are kept; each takes less than 100 KiB of memory as a rule
_KEPT = 256
_SECONDS = 10.0
#: The library descends into schemas and rules by recursion. Memory of a stack is taken only as it is used.
_STACK, _THREADS = 256 * 1024 * 1024, 2


class Compiler:
    """The grammars of one checkpoint. `vocabulary`: makes its vocabulary, for the first constraint."""

    def __init__(self, vocabulary: Callable[[], Vocabulary]) -> None:
        self._make_vocabulary = vocabulary
        self._vocabulary: Vocabulary | None = None
        self._kept: OrderedDict[Constraint, Future[CompiledGrammar]] = OrderedDict()
        self._lock = threading.Lock()
        self._threads: ThreadPoolExecutor | None = None

    async def compile(self, constraint: Constraint) -> CompiledGrammar:
        """The grammar of a constraint.

        InvalidRequest, which says where, if it is wrong, cannot be satisfied or takes too long to compile.
        ConstraintNotAvailable if this checkpoint cannot constrain answers.
        """
        waiting = asyncio.wrap_future(self._future(constraint))
        waiting.add_done_callback(lambda done: done.cancelled() or done.exception())  # it may come too late
        try:
            return await asyncio.wait_for(asyncio.shield(waiting), _SECONDS)
        except MrpServeError as error:
            raise copy(error) from None  # raising an error extends its traceback, and this one is kept
        except TimeoutError:
            raise InvalidRequest(
                f"{constraint.param} takes more than {_SECONDS:g} s to compile", param=constraint.param
            ) from None

    def kept(self, constraint: Constraint) -> CompiledGrammar:
        """The grammar of a constraint that was compiled before. Blocks while it is compiled again, if it was dropped.

        Raises what `compile` raises.
        """
        return self._future(constraint).result()

    def close(self) -> None:
        """Ends the threads after what they compile now."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    def _compile(self, constraint: Constraint) -> CompiledGrammar:
        with self._lock:
            if self._vocabulary is None:
                self._vocabulary = self._make_vocabulary()
        return compile_grammar(constraint, self._vocabulary)

    def _future(self, constraint: Constraint) -> Future[CompiledGrammar]:
        """Called on the event loop's thread only."""
        future = self._kept.get(constraint)
        if future is None:
            if self._threads is None:
                self._threads = _with_deep_stacks()
            future = self._kept[constraint] = self._threads.submit(self._compile, constraint)
        self._kept.move_to_end(constraint)
        while len(self._kept) > _KEPT:
            self._kept.popitem(last=False)
        return future


def _with_deep_stacks() -> ThreadPoolExecutor:
    """Threads whose stacks are deep enough for any constraint within the limits."""
    pool = ThreadPoolExecutor(_THREADS, "constraints")
    before = threading.stack_size(_STACK)
    try:
        ready = threading.Barrier(_THREADS + 1)
        for _ in range(_THREADS):
            pool.submit(ready.wait)
        ready.wait()
    finally:
        threading.stack_size(before)
    return pool
