"""The engine of a replica in a process of its own (`process.py`), on the same machine.

Python runs one thread of a process at a time. So an engine on a thread of the replica waits for every block that the
replica makes text of and sends, and the event loop waits for the engine's Python.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import subprocess
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from copy import copy
from functools import partial
from pathlib import Path
from typing import Any, Self

from service.constraints import Constraint
from service.engine.observer import EngineState
from service.engine.request import BlockEvent, BlockProgress, GenerationRequest, RequestFailed
from service.engine.streams import RequestStreams
from service.engine.validation import validate
from service.errors import InvalidRequest, MrpServeError, ReplicaLost, ReplicaStopping
from service.frames import Frames
from service.parallel.child import start_child
from service.replica.engines import EngineInfo
from service.replica.messages import (
    AT_REPLICA,
    Abort,
    ApplyWeights,
    Call,
    CheckWeights,
    Compiled,
    LoadWeights,
    Procedure,
    Ready,
    Reply,
    Start,
    StartFailed,
    StepOutputs,
    Submit,
    decode_counts,
)
from service.settings import Settings
from service.silence import HUNG_S, LOOK_S, Silence
from service.telemetry.sums import Added
from service.tracebacks import type_and_line

_log = logging.getLogger(__name__)

#: seconds for a process whose socket has closed to end, so that its status can be reported
_END_S = 1.0


class EngineProcessClient(Frames):
    """Implements `EngineClient`. `start` makes it. All is called on one event loop. `process`: the engine's.

    `count`: gets the metrics of the engine's process, a little later, since answers go first.
    """

    info: EngineInfo

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        count: Callable[[Added], None],
        stall_timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(AT_REPLICA)
        self._process, self._count = process, count
        self._stall_timeout_s, self._clock = stall_timeout_s, clock
        self._streams = RequestStreams(self._abort)
        self._requests: set[str] = set()  # those that the engine has
        self._compiling: set[str] = set()  # those that wait for a grammar
        self._state = EngineState(0, 0, 0, 0)
        self._counted: list[bytes] = []
        self._numbers = itertools.count()
        self._calls: dict[int, asyncio.Future[str]] = {}
        self._ready: asyncio.Future[EngineInfo] = asyncio.get_running_loop().create_future()
        self._heard, self._applying, self._closed = clock(), False, False
        self._silence = Silence(clock)
        self._failure: str | None = None
        self._watching: asyncio.Task[None] | None = None

    @classmethod
    async def start(cls, settings: Settings, count: Callable[[Added], None], deps: str = "") -> Self:
        """Starts the process and waits until it has loaded its engine. Raises what loading raises.

        EngineFailed for an error that nobody foresaw; ReplicaLost if the process ends. `deps`: `module:name` of the
        engine's `EngineDeps`, if not the default ones.
        """
        process, end = start_child("service.replica.process", *filter(None, [deps]))
        engine = cls(process, count, settings.stall_timeout_s)
        await asyncio.get_running_loop().create_unix_connection(lambda: engine, sock=end)
        try:
            engine.send(Start(settings.to_json()))
            await engine.loaded()
        except BaseException:
            engine.close()
            raise
        return engine

    async def loaded(self) -> None:
        """Waits until the engine takes requests. Called once."""
        self.info = await self._ready
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
        """The state after the last reported step, which is then counted, too."""
        self._open_counts()
        return self._state

    # --- requests ----------------------------------------------------------------------------------

    def generate(
        self, request: GenerationRequest, constraint: Constraint | None = None
    ) -> AsyncGenerator[BlockEvent | BlockProgress]:
        """See `EngineClient.generate`. A request that the engine can never serve does not reach its process."""
        info = self.info
        validate(request, info.config, info.max_model_len, deterministic=info.deterministic)
        return self._streams.open(request.request_id, partial(self._submit, request, constraint))

    def _submit(self, request: GenerationRequest, constraint: Constraint | None) -> None:
        if self._failure is not None:
            raise ReplicaStopping(f"the engine stopped: {self._failure}", retry_after=1.0)
        if self._closed:
            raise ReplicaStopping("the server is shutting down", retry_after=1.0)
        if request.request_id in self._requests or request.request_id in self._compiling:
            raise InvalidRequest(f"request id {request.request_id!r} is in use", param="request_id")
        self.send(Submit(request, constraint))
        if constraint is not None:
            self._compiling.add(request.request_id)
        else:
            self._have(request.request_id)

    def _have(self, request_id: str) -> None:
        """The engine has a request, so a step is due."""
        if not self._requests:
            self._heard = self._clock()
        self._requests.add(request_id)

    def _forget(self, request_id: str) -> None:
        self._requests.discard(request_id)
        self._compiling.discard(request_id)

    def _abort(self, request_id: str) -> None:
        if request_id in self._requests or request_id in self._compiling:
            self.send(Abort(request_id))

    # --- weights -----------------------------------------------------------------------------------

    async def check(self, model: str) -> None:
        """See `EngineClient.check`."""
        await self._call(CheckWeights(model))

    async def fetch(self, model: str) -> Path:
        """See `EngineClient.fetch`."""
        return Path(await self._call(LoadWeights(model)))

    async def take(self, version: int, *, cut: bool) -> None:
        """See `EngineClient.take`."""
        self._applying = True
        try:
            await self._call(ApplyWeights(version, cut))
        finally:
            self._heard, self._applying = self._clock(), False

    async def _call(self, procedure: Procedure) -> str:
        if self._failure is not None or self._closed:
            raise ReplicaStopping(f"the engine stopped: {self._failure or 'the server is shutting down'}")
        number = next(self._numbers)
        reply: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._calls[number] = reply
        self.send(Call(number, procedure))
        try:
            return await reply
        finally:
            self._calls.pop(number, None)

    # --- what comes --------------------------------------------------------------------------------

    def received(self, content: bytes) -> None:
        """Handles the messages of the engine's process."""
        self._silence.heard()
        for message in self.codec.decode(content):
            match message:
                case StepOutputs():
                    self._heard = self._clock()
                    self._deliver(message)
                case Compiled(request_id):
                    if request_id in self._compiling:
                        self._compiling.discard(request_id)
                        self._have(request_id)
                case Reply():
                    self._heard = self._clock()
                    self._settle(message)
                case Ready(info) if not self._ready.done():
                    self._ready.set_result(info)
                case StartFailed(error) if not self._ready.done():
                    self._ready.set_exception(error)

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002 - the signature is asyncio's
        """All that waits fails."""
        if self._closed:
            return
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)
        self._lose(f"the engine's process has ended (status {self._process.poll()})")

    def _deliver(self, outputs: StepOutputs) -> None:
        self._state = outputs.state
        for request_id in outputs.finished:
            self._forget(request_id)
        for item in outputs.items:
            if isinstance(item, RequestFailed):
                self._forget(item.request_id)
        self._streams.deliver_here(outputs.items)
        if outputs.failure is not None:
            self._failure = outputs.failure
        if outputs.counted:
            self._counted.append(outputs.counted)

    def _open_counts(self) -> None:
        counted, self._counted = self._counted, []
        for added in counted:
            try:
                self._count(decode_counts(added))
            except Exception as error:  # noqa: BLE001 - any error of counting concerns only the measurement
                _log.error("counts are lost: %s", type_and_line(error))

    def _settle(self, reply: Reply) -> None:
        waiting = self._calls.get(reply.number)
        if waiting is None or waiting.done():
            return
        if reply.error is None:
            waiting.set_result(reply.path)
        else:
            waiting.set_exception(reply.error)

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
        held_up = bool(self._calls or self._compiling)
        silent, allowed = self._silence.look(), max(HUNG_S, self._stall_timeout_s) if held_up else HUNG_S
        if silent > allowed:
            return f"the engine's process has been silent for {silent:.0f} s, allowed are {allowed:g}"
        seconds = self._clock() - self._heard
        if self._requests and not self._applying and seconds > self._stall_timeout_s:
            return f"the engine's step has taken {seconds:.0f} s, allowed are {self._stall_timeout_s:g}"
        return None

    def _lose(self, why: str) -> None:
        """Nothing more comes of the process."""
        self._failure = self._failure or why
        self._end(ReplicaLost(why))

    def _end(self, error: MrpServeError) -> None:
        """Ends all that waits, each with an error of its own."""
        self._requests.clear()
        self._compiling.clear()
        self._streams.fail(lambda: copy(error))
        waiting: list[asyncio.Future[Any]] = [self._ready, *self._calls.values()]
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
