"""The engine of a replica in a process of its own (`process.py`), on the same machine.

Python runs one thread of a process at a time. So an engine on a thread of the replica waits for every block that the
replica makes text of and sends, and the event loop waits for the engine's Python.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import pickle
import subprocess
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from service.constraints import Constraint, Owner
from service.decode.block_grammar import CompiledGrammar
from service.engine.observer import EngineState
from service.engine.request import BlockEvent, BlockProgress, GenerationRequest
from service.engine.streams import Streams
from service.engine.validation import validate
from service.errors import EngineFailed, InvalidRequest, MrpServeError, ReplicaLost, ReplicaStopping
from service.frames import Frames
from service.parallel.child import start_child
from service.pickling import PICKLED
from service.replica.engines import Served
from service.replica.messages import (
    Abort,
    Alive,
    Answered,
    Ask,
    Check,
    Compile,
    Fetch,
    KeptGrammar,
    Ready,
    Start,
    Stepped,
    Submit,
    Take,
    Unloaded,
)
from service.settings import Settings
from service.silence import HUNG_S, LOOK_S, Silence
from service.telemetry.sums import Added
from service.tracebacks import kind_and_place

if TYPE_CHECKING:
    from service.engine import EngineDeps

_log = logging.getLogger(__name__)

#: seconds for a process whose socket has closed to end, so that its status can be told
_END_S = 1.0


class RemoteEngine(Frames):
    """Implements `ReplicaEngine`. `start` makes it. All is called on one event loop. `process`: the engine's.

    `count`: gets what the engine's process has counted, a little later, since answers go first.
    """

    served: Served

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        count: Callable[[Added], None],
        stall_timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(PICKLED)
        self._process, self._count = process, count
        self._stall_timeout_s, self._clock = stall_timeout_s, clock
        self._streams = Streams(self._submit, self._cancel)
        self._requests: set[str] = set()
        self._state = EngineState(0, 0, 0, 0)
        self._counted: list[bytes] = []
        self._numbers = itertools.count()
        self._asked: dict[int, asyncio.Future[str]] = {}
        self._ready: asyncio.Future[Served] = asyncio.get_running_loop().create_future()
        self._heard, self._taking, self._closed = clock(), False, False
        self._silence = Silence(clock)
        self._failure: str | None = None
        self._watching: asyncio.Task[None] | None = None

    @classmethod
    async def start(cls, settings: Settings, count: Callable[[Added], None], deps: EngineDeps | None = None) -> Self:
        """Starts the process and waits until it has loaded its engine. Raises what loading raises.

        EngineFailed for an error that nobody foresaw; ReplicaLost if the process ends. `deps` must be picklable.
        """
        process, own = start_child("service.replica.process")
        engine = cls(process, count, settings.stall_timeout_s)
        await asyncio.get_running_loop().create_unix_connection(lambda: engine, sock=own)
        try:
            engine.send(Start(settings, deps))
            await engine.loaded()
        except BaseException:
            engine.close()
            raise
        return engine

    async def loaded(self) -> None:
        """Waits until the engine takes requests. Called once."""
        self.served = await self._ready
        self._silence = Silence(self._clock)
        self._watching = asyncio.get_running_loop().create_task(self._watch())

    @property
    def pid(self) -> int:
        """The engine's process."""
        return self._process.pid

    @property
    def failure(self) -> str | None:
        """Why the engine stopped, or that its process is gone. None while it can decode."""
        return self._failure

    def state(self) -> EngineState:
        """The state after the last step that was told, which is then counted, too."""
        self._open_counts()
        return self._state

    # --- requests ----------------------------------------------------------------------------------

    def generate(self, request: GenerationRequest) -> AsyncGenerator[BlockEvent | BlockProgress]:
        """See `EngineWorker.generate`."""
        served = self.served
        validate(request, served.config, served.max_model_len, deterministic=served.deterministic)
        return self._streams.follow(request)

    def _submit(self, request: GenerationRequest) -> None:
        if self._failure is not None:
            raise ReplicaStopping(f"the engine stopped: {self._failure}", retry_after=1.0)
        if self._closed:
            raise ReplicaStopping("the server is shutting down", retry_after=1.0)
        if request.request_id in self._requests:
            raise InvalidRequest(f"request id {request.request_id!r} is in use", param="request_id")
        if not self._requests:
            self._heard = self._clock()
        self._requests.add(request.request_id)
        self.send(Submit(request))

    def _cancel(self, request_id: str) -> None:
        if request_id in self._requests:
            self.send(Abort(request_id))

    # --- grammars and weights ----------------------------------------------------------------------

    async def compile(self, constraint: Constraint, owner: Owner) -> CompiledGrammar:
        """Compiled and kept in the engine's process."""
        await self._ask(Compile(constraint, owner))
        return KeptGrammar(constraint, owner)

    async def check(self, model: str) -> None:
        """See `ReplicaEngine.check`."""
        await self._ask(Check(model))

    async def fetch(self, model: str) -> Path:
        """See `ReplicaEngine.fetch`."""
        return Path(await self._ask(Fetch(model)))

    async def take(self, version: int, *, cut: bool) -> None:
        """See `ReplicaEngine.take`."""
        self._taking = True
        try:
            await self._ask(Take(version, cut))
        finally:
            self._heard, self._taking = self._clock(), False

    async def _ask(self, what: Compile | Check | Fetch | Take) -> str:
        if self._failure is not None or self._closed:
            raise ReplicaStopping(f"the engine stopped: {self._failure or 'the server is shutting down'}")
        number = next(self._numbers)
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._asked[number] = answer
        self.send(Ask(number, what))
        try:
            return await answer
        finally:
            self._asked.pop(number, None)

    # --- what comes --------------------------------------------------------------------------------

    def received(self, content: bytes) -> None:
        """Handles the messages of the engine's process."""
        self._silence.heard()
        for message in self.codec.decode(content):
            if isinstance(message, Alive):
                continue
            self._heard = self._clock()
            if isinstance(message, Stepped):
                self._stepped(message)
            elif isinstance(message, Answered):
                self._answered(message)
            elif isinstance(message, Ready) and not self._ready.done():
                self._ready.set_result(message.served)
            elif isinstance(message, Unloaded) and not self._ready.done():
                error = message.error
                self._ready.set_exception(error if isinstance(error, MrpServeError) else EngineFailed(error))

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002 - the signature is asyncio's
        """All that waits fails."""
        if self._closed:
            return
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)
        self._lose(f"the engine's process has ended (status {self._process.poll()})")

    def _stepped(self, message: Stepped) -> None:
        self._state = message.state
        self._requests.difference_update(message.over)
        for request_id, item in message.items:
            if isinstance(item, MrpServeError):
                self._requests.discard(request_id)
        self._streams.put(message.items)
        if message.failure is not None:
            self._failure = message.failure
        if message.counted:
            self._counted.append(message.counted)

    def _open_counts(self) -> None:
        counted, self._counted = self._counted, []
        for added in counted:
            try:
                self._count(pickle.loads(added))  # noqa: S301 - from the engine's process
            except Exception as error:  # noqa: BLE001 - any error of counting concerns only the measurement
                _log.error("counts are lost: %s", kind_and_place(error))

    def _answered(self, message: Answered) -> None:
        answer = self._asked.get(message.number)
        if answer is None or answer.done():
            return
        if message.error is None:
            answer.set_result(message.path)
        else:
            answer.set_exception(message.error)

    # --- the end -----------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Opens the counts, and ends a process that stands still, or whose step takes too long."""
        while self._failure is None:
            await asyncio.sleep(LOOK_S)
            self._open_counts()
            if (why := self._stands_still()) is not None:
                self._lose(why)
                self._process.kill()

    def _stands_still(self) -> str | None:
        """Why the process counts as hung. A tokenizer or weights that it reads may hold up Python for longer."""
        silent, allowed = self._silence.look(), max(HUNG_S, self._stall_timeout_s) if self._asked else HUNG_S
        if silent > allowed:
            return f"the engine's process has been silent for {silent:.0f} s, allowed are {allowed:g}"
        seconds = self._clock() - self._heard
        if self._requests and not self._taking and seconds > self._stall_timeout_s:
            return f"the engine's step has taken {seconds:.0f} s, allowed are {self._stall_timeout_s:g}"
        return None

    def _lose(self, why: str) -> None:
        """Nothing more comes of the process."""
        self._failure = self._failure or why
        self._end(ReplicaLost(why))

    def _end(self, error: MrpServeError) -> None:
        """Ends all that waits, each with an error of its own."""
        self._requests.clear()
        self._streams.fail(lambda: copy(error))
        waiting: list[asyncio.Future[Any]] = [self._ready, *self._asked.values()]
        for answer in waiting:
            if not answer.done():
                answer.set_exception(copy(error))

    def close(self) -> None:
        """Ends the process. Requests in progress end with ReplicaStopping."""
        if self._closed:
            return
        self._closed = True
        if self._watching is not None:
            self._watching.cancel()
        self._transport.abort()
        self._process.kill()
        self._process.wait()
        self._end(ReplicaStopping("the server is shutting down", retry_after=1.0))
