"""The replica's client of its engine, which has a process of its own (`process.py`) on the same machine."""

import asyncio
import itertools
import logging
import subprocess
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from copy import copy
from functools import partial
from typing import Self, cast

from service.constraints import Constraint
from service.engine.observer import EngineState
from service.engine.request import BlockEvent, BlockProgress, GenerationRequest, RequestFailed, validate
from service.engine.streams import RequestStreams
from service.engine_process import messages
from service.errors import InvalidRequest, MrpServeError, ReplicaLost, ReplicaStopping
from service.ipc.connections import HEARTBEAT_TIMEOUT_S, POLL_S, Frames, HeartbeatMonitor, start_child
from service.messages.replica_status import ControlCommand
from service.settings.defaults import STEP_TIMEOUT_S
from service.settings.settings import Settings
from service.telemetry.metrics import SumsData
from service.tracebacks import type_and_line

_log = logging.getLogger(__name__)

#: seconds for a process whose socket has closed to end, so that its status can be reported
_END_S = 1.0
#: the most requests that the line of a lost engine names
_MOST_NAMED = 20

#: gets the keywords of a constraint that are not enforced
NoteIgnored = Callable[[tuple[str, ...]], None]


class EngineProcessClient(Frames):
    """A running engine. `start` makes it. All is called on one event loop.

    `add_sums`: gets the metrics of the engine's process, later. `failure`: why the engine cannot decode; None while it
    can.
    """

    info: messages.EngineInfo

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        add_sums: Callable[[SumsData], None],
        stall_timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(messages.AT_REPLICA)
        self._process, self._add_sums = process, add_sums
        self._stall_timeout_s, self._clock = stall_timeout_s, clock
        self._streams = RequestStreams(self._abort)
        self._requests: set[str] = set()  # requests that the engine has
        self._compiling: dict[str, NoteIgnored] = {}  # requests that wait for a grammar
        self._state = EngineState(0, 0, 0, 0)
        self._sums: list[bytes] = []
        self._numbers = itertools.count()
        self._calls: dict[int, asyncio.Future[messages.EngineReply]] = {}
        self._last_step, self._closed = clock(), False
        self._heartbeats = HeartbeatMonitor(clock)
        self.failure: str | None = None
        self._watching: asyncio.Task[None] | None = None

    @classmethod
    async def start(
        cls,
        settings: Settings,
        add_sums: Callable[[SumsData], None],
        deps: str = "",
        stall_timeout_s: float = STEP_TIMEOUT_S,
    ) -> Self:
        """Starts the process and waits until it has loaded its engine. Raises the errors of loading.

        EngineFailed for an unexpected error; ReplicaLost if the process ends. `deps`: `module:name` of the
        engine's `EngineDeps`, if not the default ones. `stall_timeout_s`: the longest step of a healthy engine.
        """
        process, end = start_child("service.engine_process.process", *filter(None, [deps]))
        engine = cls(process, add_sums, stall_timeout_s)
        await asyncio.get_running_loop().create_unix_connection(lambda: engine, sock=end)
        try:
            reply = await engine._call(messages.Start(settings.to_json()))
            engine.info = cast(messages.EngineInfo, reply.info)
            engine._watching = asyncio.create_task(engine._watch())
        except BaseException:
            engine.close()
            raise
        return engine

    @property
    def pid(self) -> int:
        return self._process.pid

    def state(self) -> EngineState:
        self._decode_sums()
        return self._state

    def generate(
        self,
        request: GenerationRequest,
        constraint: Constraint | None = None,
        note_ignored: NoteIgnored = lambda _: None,
    ) -> AsyncGenerator[BlockEvent | BlockProgress]:
        """The request's block events, and its steps if it asks for them. The last item has a finish reason.

        `constraint`: the constraint of the answer, for which the engine's process compiles a grammar. `note_ignored`
        gets the keywords that the grammar does not enforce. Closing the generator aborts the request. Raises the errors
        of `validate`, `GrammarCompiler.compile` and `EngineThread.submit`; ReplicaStopping; EngineFailed; OutOfMemory
        if the device has no memory for this request.
        """
        info = self.info
        validate(request, info.config, info.max_model_len, deterministic=info.deterministic)
        return self._streams.open(request.request_id, partial(self._submit, request, constraint, note_ignored))

    def _submit(self, request: GenerationRequest, constraint: Constraint | None, note_ignored: NoteIgnored) -> None:
        self._check_running()
        if request.request_id in self._requests or request.request_id in self._compiling:
            raise InvalidRequest(f"request id {request.request_id!r} is in use", param="request_id")
        self.send(messages.Submit(request, constraint))
        if constraint is not None:
            self._compiling[request.request_id] = note_ignored
        else:
            self._add(request.request_id)

    def _check_running(self) -> None:
        if self.failure is not None or self._closed:
            reason = "the server is shutting down" if self.failure is None else f"the engine stopped: {self.failure}"
            raise ReplicaStopping(reason, retry_after=1.0)

    def _add(self, request_id: str) -> None:
        if not self._requests:
            self._last_step = self._clock()
        self._requests.add(request_id)

    def _forget(self, request_id: str) -> None:
        self._requests.discard(request_id)
        self._compiling.pop(request_id, None)

    def _abort(self, request_id: str) -> None:
        if request_id in self._requests or request_id in self._compiling:
            self.send(messages.Abort(request_id))

    async def control(self, command: ControlCommand) -> messages.EngineReply:
        """Carries out a command. Raises the errors of `EngineCore.control`; ReplicaStopping if the engine stops."""
        self._check_running()
        return await self._call(command)

    async def _call(self, command: messages.Start | ControlCommand) -> messages.EngineReply:
        number = next(self._numbers)
        reply: asyncio.Future[messages.EngineReply] = asyncio.get_running_loop().create_future()
        self._calls[number] = reply
        self.send(messages.EngineCall(number, command))
        try:
            return await reply
        finally:
            self._calls.pop(number, None)

    def received(self, content: bytes) -> None:
        self._heartbeats.observe()
        for message in self.codec.decode(content):
            match message:
                case messages.StepOutputs():
                    self._last_step = self._clock()
                    self._deliver(message)
                case messages.Compiled(request_id, ignored):
                    if (note_ignored := self._compiling.pop(request_id, None)) is not None:
                        note_ignored(ignored)
                        self._add(request_id)
                case messages.EngineReply():
                    self._last_step = self._clock()
                    self._settle(message)
                case messages.EngineAlive(controlled=True):
                    self._last_step = self._clock()

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002 - the signature is asyncio's
        if self._closed:
            return
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)
        self._lose(f"the engine's process has ended (status {self._process.poll()})")

    def _deliver(self, outputs: messages.StepOutputs) -> None:
        self._state = outputs.state
        for request_id in outputs.finished:
            self._forget(request_id)
        for item in outputs.items:
            if isinstance(item, RequestFailed):
                self._forget(item.request_id)
        self._streams.deliver(outputs.items)
        if outputs.failure is not None:
            self.failure = outputs.failure
        if outputs.sums:
            self._sums.append(outputs.sums)

    def _decode_sums(self) -> None:
        encoded, self._sums = self._sums, []
        for sums in encoded:
            try:
                self._add_sums(messages.decode_sums(sums))
            except Exception as error:  # noqa: BLE001 - any error of counting concerns only the measurement
                _log.error("counts are lost: %s", type_and_line(error))

    def _settle(self, reply: messages.EngineReply) -> None:
        pending = self._calls.get(reply.number)
        if pending is None or pending.done():
            return
        if reply.error is None:
            pending.set_result(reply)
        else:
            pending.set_exception(reply.error)

    async def _watch(self) -> None:
        while self.failure is None:
            await asyncio.sleep(POLL_S)
            self._decode_sums()
            if (reason := self._hang()) is not None:
                self._lose(reason)
                self._process.kill()

    def _hang(self) -> str | None:
        held_up = bool(self._calls or self._compiling)
        allowed = max(HEARTBEAT_TIMEOUT_S, self._stall_timeout_s) if held_up else HEARTBEAT_TIMEOUT_S
        if (silent := self._heartbeats.poll()) > allowed:
            return f"the engine's process has been silent for {silent:.0f} s, allowed are {allowed:g}"
        seconds = self._clock() - self._last_step
        if self._requests and seconds > self._stall_timeout_s:
            return f"the engine's step has taken {seconds:.0f} s, allowed are {self._stall_timeout_s:g}"
        return None

    def _lose(self, reason: str) -> None:
        self.failure = self.failure or reason
        requests = [*self._requests, *self._compiling]
        _log.error("%s", reason, extra={"requests": len(requests), "ids": ",".join(requests[:_MOST_NAMED])})
        self._end(ReplicaLost(reason))

    def _end(self, error: MrpServeError) -> None:
        self._requests.clear()
        self._compiling.clear()
        self._streams.fail(lambda: copy(error))
        for reply in self._calls.values():
            if not reply.done():
                reply.set_exception(copy(error))

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
