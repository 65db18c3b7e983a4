"""The process of a replica's engine: `python -m service.replica.process DESCRIPTOR`, started by `remote.py`.

The engine shares no Python lock with the replica's event loop. The engine's thread sends what a step found itself, so
this process's own event loop only wakes for messages that come. The process ends when its socket closes.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from math import inf
from typing import Any, NoReturn

from service.decode.block import Step
from service.engine import BlockEvent, GenerationRequest, StepReport
from service.engine.responsive import keep_responsive
from service.engine.streams import Item
from service.engine.thread import EngineThread
from service.errors import MrpServeError, ReplicaStopping
from service.frames import Frames, framed
from service.model.options import set_threads
from service.pickling import PICKLED
from service.replica.core import Core, load_core
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
from service.replica.metrics import EngineMetrics
from service.silence import BEAT_S
from service.telemetry.faults import unexpected_error
from service.telemetry.logs import install_logs
from service.telemetry.sums import Sums
from service.tracebacks import kind_and_place

#: seconds after which counts are sent while no request ends
_COUNTED_S = 0.1
#: seconds between two looks at the ranks
_WATCH_S = 0.1


class _Out:
    """Sends messages from any thread. `end`: does not block, since the event loop reads from it."""

    def __init__(self, end: socket.socket) -> None:
        self._end, self._sending = end, threading.Lock()

    def send(self, message: object) -> None:
        """Waits until all of it is sent. If the replica is gone, this process ends."""
        left = memoryview(framed(PICKLED.encode(message)))
        with self._sending:
            while left:
                try:
                    left = left[self._end.send(left) :]
                except BlockingIOError:
                    select.select([], [self._end], [])
                except OSError:
                    os._exit(0)


class _Steps:
    """Sends what the engine's steps find, and counts them. Implements `Observer`. Used by the engine's thread."""

    thread: EngineThread

    def __init__(self, send: Callable[[Stepped], None]) -> None:
        self._send = send
        self._sums = Sums()
        self._metrics = EngineMetrics(self._sums)
        self._over: list[str] = []
        self._due = inf

    def on_step(self, report: StepReport) -> None:
        """Counted."""
        self._metrics.on_step(report)
        if self._due == inf:
            self._due = time.monotonic() + _COUNTED_S

    def on_event(self, request: GenerationRequest, event: BlockEvent, steps: Sequence[Step]) -> None:
        """Counted."""
        self._metrics.on_event(request, event, steps)
        if event.finish_reason is not None:
            self._over.append(request.request_id)

    def deliver(self, items: list[tuple[str, Item]]) -> None:
        """Sends the items. Counts come with the end of a request, so metrics know every answer that a client has."""
        failure = self.thread.failure
        due = bool(self._over) or time.monotonic() > self._due
        if not (items or due or failure):
            return
        over, self._over = self._over, []
        counted = b""
        if due:
            counted, self._due = pickle.dumps(self._sums.take(), protocol=pickle.HIGHEST_PROTOCOL), inf
        self._send(Stepped(items, over, self.thread.state(), failure, counted))


class EngineProcess(Frames):
    """What the process does with the messages that come. `end`: its socket."""

    def __init__(self, end: socket.socket) -> None:
        super().__init__(PICKLED)
        self._out = _Out(end)
        self._steps = _Steps(self._out.send)
        self._core: Core
        self._fetched: Callable[[], None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def received(self, content: bytes) -> None:
        """Obeys the messages in their order. Those that take time are obeyed beside others."""
        for message in self.codec.decode(content):
            if isinstance(message, Submit):
                self._submit(message.request)
            elif isinstance(message, Abort):
                self._steps.thread.abort(message.request_id)
            elif isinstance(message, Ask):
                self._begin(self._answer(message))
            elif isinstance(message, Start):
                self._begin(self._start(message))

    def connection_lost(self, error: Exception | None) -> NoReturn:  # noqa: ARG002 - the signature is asyncio's
        """The replica has closed its engine, or is gone. A step may be under way that nobody needs."""
        os._exit(0)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _start(self, message: Start) -> None:
        try:
            settings = message.settings
            install_logs(settings)
            set_threads(settings.torch_threads, settings.tensor_parallel_size)
            self._core = await asyncio.to_thread(load_core, settings, self._steps, message.parts)
        except Exception as error:  # noqa: BLE001 - the replica says what it was
            self._out.send(Unloaded(error if isinstance(error, MrpServeError) else kind_and_place(error)))
            return
        keep_responsive()
        # The replica knows steps that take too long by their silence.
        self._steps.thread = EngineThread(self._core.engine, self._steps.deliver, self._core.room, float("inf"))
        self._steps.thread.start()
        self._out.send(Ready(self._core.served))
        threading.Thread(target=self._beat, name="beat", daemon=True).start()
        if self._core.ranks:
            await self._watch()

    def _beat(self) -> None:
        """Says that this process runs, on a thread that a long step, or a long compilation, does not hold up."""
        while True:
            time.sleep(BEAT_S)
            self._out.send(Alive())

    async def _watch(self) -> None:
        """Tells that a rank is lost, which no step would notice while there is none."""
        while (failure := self._core.failure) is None:
            await asyncio.sleep(_WATCH_S)
        self._out.send(Stepped([], [], self._steps.thread.state(), failure))

    def _submit(self, request: GenerationRequest) -> None:
        try:
            if isinstance(request.grammar, KeptGrammar):
                known = self._core.compiler.cached(request.grammar.constraint, request.grammar.owner)
                if known is None:
                    raise ReplicaStopping(
                        "the constraint's grammar was dropped; send the request again", retry_after=1.0
                    )
                request = replace(request, grammar=known)
            self._steps.thread.submit(request)
        except MrpServeError as error:
            state = self._steps.thread.state()
            self._out.send(Stepped([(request.request_id, error)], [request.request_id], state, None))

    async def _answer(self, ask: Ask) -> None:
        error: MrpServeError | None = None
        path = ""
        try:
            path = await self._do(ask.what)
        except MrpServeError as problem:
            error = problem
        except Exception as problem:  # noqa: BLE001 - the log gets its place, the replica no message
            error = unexpected_error(problem, "")
        self._out.send(Answered(ask.number, error, path))

    async def _do(self, what: Compile | Check | Fetch | Take) -> str:
        if isinstance(what, Compile):
            await self._core.compiler.compile(what.constraint, what.owner)
        elif isinstance(what, Check):
            await asyncio.to_thread(self._core.check, what.model)
        elif isinstance(what, Fetch):
            self._fetched, path = await asyncio.to_thread(self._core.fetch, what.model)
            return str(path)
        else:
            take, self._fetched = self._fetched, None
            if take is None:
                raise AssertionError("weights are to be taken before they are fetched")
            await self._steps.thread.exchange(take, what.version, cut=what.cut)
        return ""


async def _main(end: socket.socket) -> None:
    await asyncio.get_running_loop().create_unix_connection(lambda: EngineProcess(end.dup()), sock=end)
    await asyncio.Event().wait()  # until the socket closes


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # a terminal, or `timeout`, sends it to all; the replica decides
    asyncio.run(_main(socket.socket(fileno=int(sys.argv[1]))))
