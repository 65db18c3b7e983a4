"""The process of a replica's engine, started by `client.py`: `python -m service.engine_process.process FD [DEPS]`.

The engine's thread sends the results of a step itself. The process ends when its socket closes. `DEPS`: `module:name`
of the engine's `EngineDeps`, if not the default ones.
"""

import asyncio
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from math import inf
from pkgutil import resolve_name
from typing import Any, NoReturn

from service.constraints import Constraint
from service.decode.block import Step
from service.engine import BlockEvent, EngineDeps, GenerationRequest, StepReport
from service.engine.request import RequestFailed
from service.engine.streams import EngineOutput
from service.engine.thread import EngineThread
from service.engine_process import messages
from service.engine_process.core import EngineCore, load_core
from service.engine_process.metrics import EngineMetrics
from service.errors import EngineFailed, MrpServeError
from service.ipc.connections import HEARTBEAT_S, Channel, Frames, tune_interpreter
from service.messages.replica_status import CheckWeights, ControlCommand, ResetPrefixCache, SetPause, UpdateWeights
from service.model.device import set_threads
from service.settings.settings import Settings, torch_threads
from service.telemetry.logs import install_logs
from service.telemetry.metrics import Sums
from service.tracebacks import error_for_client, type_and_line

#: seconds after which metrics are sent while no request ends
_SUMS_S = 0.1
#: seconds between two polls of the ranks
_WATCH_S = 0.1


class _Steps:
    """Sends the results of the engine's steps, and counts them. Implements `Observer`. Used by the engine's thread."""

    thread: EngineThread

    def __init__(self, send: Callable[[messages.StepOutputs], None]) -> None:
        self._send = send
        self._sums = Sums()
        self._metrics = EngineMetrics(self._sums)
        self._finished: list[str] = []
        self._due = inf
        self._halted = False

    def on_step(self, report: StepReport) -> None:
        self._metrics.on_step(report)
        if self._due == inf:
            self._due = time.monotonic() + _SUMS_S

    def on_event(self, request: GenerationRequest, event: BlockEvent, steps: Sequence[Step]) -> None:
        self._metrics.on_event(request, event, steps)
        if event.finish_reason is not None:
            self._finished.append(request.request_id)

    def deliver(self, items: list[EngineOutput]) -> None:
        """Sends the items. Metrics come with the end of a request, so they count every answer that a client has.

        While the engine is paused or asleep, every poll of its thread is sent, too: the thread lives.
        """
        failure, state = self.thread.failure, self.thread.state()
        due = bool(self._finished) or time.monotonic() > self._due
        was_halted, self._halted = self._halted, state.paused or state.sleep_level > 0
        if not (items or due or failure or was_halted or self._halted):
            return
        finished, self._finished = self._finished, []
        sums = b""
        if due:
            sums, self._due = messages.encode_sums(self._sums.drain()), inf
        self._send(messages.StepOutputs(items, finished, state, failure, sums))


class EngineProcess(Frames):
    """Handles the replica's messages. `end`: the process's socket. `deps`: the engine's dependencies."""

    def __init__(self, end: socket.socket, deps: EngineDeps | None) -> None:
        super().__init__(messages.AT_ENGINE)
        self._deps = deps
        self._channel = Channel(end, messages.AT_REPLICA)
        self._steps = _Steps(self._send)
        self._core: EngineCore
        self._compiling: dict[str, GenerationRequest] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def received(self, content: bytes) -> None:
        """Handles the messages in their order. Those that take time are handled beside others."""
        for message in self.codec.decode(content):
            match message:
                case messages.Submit(request, None):
                    self._submit(request)
                case messages.Submit(request, Constraint() as constraint):
                    self._compiling[request.request_id] = request
                    self._begin(self._compile(request, constraint))
                case messages.Abort(request_id):
                    self._abort(request_id)
                case messages.EngineCall(number, messages.Start(settings)):
                    self._begin(self._start(number, settings))
                case messages.EngineCall(
                    number, CheckWeights() | UpdateWeights() | SetPause() | ResetPrefixCache() as command
                ):
                    self._begin(self._control(number, command))

    def connection_lost(self, error: Exception | None) -> NoReturn:  # noqa: ARG002 - the signature is asyncio's
        """The replica has closed its engine, or is gone. A step may be under way, whose results are not needed."""
        os._exit(0)

    def _send(self, message: object) -> None:
        try:
            self._channel.send(message)
        except EOFError:
            os._exit(0)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _start(self, number: int, written: str) -> None:
        try:
            settings = Settings.from_json(written)
            install_logs(settings)
            set_threads(torch_threads(), settings.tensor_parallel_size)
            self._core = await asyncio.to_thread(load_core, settings, self._steps, self._deps)
        except Exception as error:  # noqa: BLE001 - the replica raises it
            failure = error if isinstance(error, MrpServeError) else EngineFailed(type_and_line(error))
            self._send(messages.EngineReply(number, failure))
            return
        tune_interpreter()
        self._steps.thread = EngineThread(self._core.engine, self._steps.deliver, self._core.room)
        self._steps.thread.start()
        self._send(messages.EngineReply(number, info=self._core.info))
        threading.Thread(target=self._send_heartbeats, name="heartbeat", daemon=True).start()
        if self._core.ranks:
            await self._watch()

    def _send_heartbeats(self) -> None:
        """Runs on a thread that a long step, or a long compilation, does not hold up."""
        while True:
            time.sleep(HEARTBEAT_S)
            self._send(messages.EngineAlive(self._core.controls_thread))

    async def _watch(self) -> None:
        while (failure := self._core.failure) is None:
            await asyncio.sleep(_WATCH_S)
        self._send(messages.StepOutputs([], [], self._steps.thread.state(), failure))

    def _submit(self, request: GenerationRequest) -> None:
        try:
            self._steps.thread.submit(request)
        except MrpServeError as error:
            self._end(request.request_id, error)

    async def _compile(self, request: GenerationRequest, constraint: Constraint) -> None:
        """Submits a request once it has its grammar. The grammar of an aborted request is compiled all the same."""
        error: MrpServeError | None = None
        compiled, ignored = request, tuple[str, ...]()
        try:
            compiled, ignored = await self._core.compiled(request, constraint)
        except Exception as problem:  # noqa: BLE001 - the log gets its place, the replica no message
            error = error_for_client(problem, request.request_id)
        if self._compiling.get(request.request_id) is not request:
            return
        del self._compiling[request.request_id]
        if error is not None:
            self._end(request.request_id, error)
        else:
            self._send(messages.Compiled(request.request_id, ignored))
            self._submit(compiled)

    def _abort(self, request_id: str) -> None:
        if self._compiling.pop(request_id, None) is not None:
            self._send(messages.StepOutputs([], [request_id], self._steps.thread.state()))
        else:
            self._steps.thread.abort(request_id)

    def _end(self, request_id: str, error: MrpServeError) -> None:
        self._send(messages.StepOutputs([RequestFailed(request_id, error)], [request_id], self._steps.thread.state()))

    async def _control(self, number: int, command: ControlCommand) -> None:
        try:
            weights, pause = await self._core.control(self._steps.thread, command)
            reply = messages.EngineReply(number, None, weights, pause)
        except Exception as error:  # noqa: BLE001 - as in `_compile`
            reply = messages.EngineReply(number, error_for_client(error, ""))
        self._send(reply)


async def _main(end: socket.socket, deps: EngineDeps | None) -> None:
    await asyncio.get_running_loop().create_unix_connection(lambda: EngineProcess(end.dup(), deps), sock=end)
    await asyncio.Event().wait()  # until the socket closes


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # a terminal, or `timeout`, sends it to all; the replica decides
    asyncio.run(_main(socket.socket(fileno=int(sys.argv[1])), resolve_name(sys.argv[2]) if sys.argv[2:] else None))
