"""Runs the engine on its own thread. What a step finds is handed on, on that thread, at its end.

Any thread may submit and abort requests: they wait in an inbox under one lock until the next step. An unexpected error
in a step fails all requests in progress, and the thread stays unhealthy with that reason. A step that takes too long
makes it unhealthy while it lasts.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field
from functools import partial

from service import defaults
from service.engine.engine import Engine
from service.engine.observer import EngineState
from service.engine.request import BlockEvent, BlockProgress, GenerationRequest, RequestFailed
from service.engine.streams import Item, RequestStreams, ends
from service.errors import (
    EngineFailed,
    InvalidRequest,
    MrpServeError,
    QueueFull,
    ReplicaLost,
    ReplicaStopping,
    WeightsChanged,
)
from service.tracebacks import type_and_line, without_message

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Change:
    """Other weights, and who waits for them. `cut`: requests that run are ended; else they finish first."""

    take: Callable[[], None] = field(repr=False)
    version: int
    cut: bool
    loop: asyncio.AbstractEventLoop
    done: asyncio.Future[None]

    def end(self, error: BaseException | None = None) -> None:
        """Tells who waits. Called on the engine's thread."""
        with suppress(RuntimeError):  # the loop is closed, so nobody waits
            self.loop.call_soon_threadsafe(self._tell, error)

    def _tell(self, error: BaseException | None) -> None:
        if self.done.done():
            return
        if error is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(error)


@dataclass(slots=True)
class _Inbox:
    submitted: list[GenerationRequest] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    change: _Change | None = None

    def __bool__(self) -> bool:
        return bool(self.submitted or self.aborted or self.change)


#: never filled, so another thread cannot fill it after a look
_EMPTY = _Inbox()


@dataclass(slots=True)
class _Held:
    """The items of a request that are not handed on yet. `together`: so many are handed on at once."""

    together: int
    items: list[Item] = field(default_factory=list)

    def due(self, item: Item) -> list[Item]:
        """What is to be handed on now. The last item brings all others with it."""
        self.items.append(item)
        if len(self.items) < self.together and not ends(item):
            return []
        due, self.items = self.items, []
        return due


class EngineThread:
    """Owns the thread that steps an engine. `start` it once, `stop` it once.

    `deliver`: gets the items of a step in their order; it must be quick and not raise. A step that takes longer than
    `stall_timeout_s` counts as a failure while it lasts.
    """

    def __init__(
        self,
        engine: Engine,
        deliver: Callable[[list[Item]], None],
        max_waiting: int = defaults.MAX_WAITING,
        stall_timeout_s: float = defaults.STEP_TIMEOUT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine, self._deliver, self._max_waiting = engine, deliver, max_waiting
        self._stall_timeout_s, self._clock = stall_timeout_s, clock
        self._step_began: float | None = None
        self._changed = threading.Condition()
        self._inbox = _Inbox()
        self._held: dict[str, _Held] = {}
        self._state = engine.state()
        self._on_the_way = 0  # requests taken out of the inbox that `_state` does not count yet
        self._stopping = False
        self._failure: str | None = None
        self._change: _Change | None = None
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        """Starts the engine's thread."""
        self._thread.start()

    def stop(self, timeout_s: float = 10.0) -> None:
        """Stops after the current step. Requests in progress end with ReplicaStopping."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    @property
    def failure(self) -> str | None:
        """Why the engine stopped or does not make progress. None while it is healthy."""
        if self._failure is None and not self._stopping and not self._thread.is_alive():
            return "the engine's thread is not running"
        return self._failure or self._stall

    @property
    def _stall(self) -> str | None:
        """The message for a current step that takes too long. The caller compares clocks; no thread watches."""
        began = self._step_began  # read once, since the step may end meanwhile
        if began is None or (seconds := self._clock() - began) <= self._stall_timeout_s:
            return None
        return f"the engine's step has taken {seconds:.0f} s, allowed are {self._stall_timeout_s:g}"

    def state(self) -> EngineState:
        """The state of the engine after its last step."""
        return self._state

    def submit(self, request: GenerationRequest) -> None:
        """Gives the engine a request that `validate` has accepted.

        Raises QueueFull if `max_waiting` requests wait; InvalidRequest if its id is in use; ReplicaStopping while the
        engine is stopping, stalled or stopped.
        """
        with self._changed:
            if self._failure is not None:
                raise ReplicaStopping(f"the engine stopped: {self._failure}", retry_after=1.0)
            if self._stopping:
                raise ReplicaStopping("the server is shutting down", retry_after=1.0)
            if stall := self._stall:
                raise ReplicaStopping(stall, retry_after=1.0)
            if request.request_id in self._held:
                raise InvalidRequest(f"request id {request.request_id!r} is in use", param="request_id")
            waiting = self._state.num_waiting + self._on_the_way + len(self._inbox.submitted)
            if waiting >= self._max_waiting:
                raise QueueFull(f"{waiting} requests are waiting, allowed are {self._max_waiting}", retry_after=1.0)
            self._held[request.request_id] = _Held(request.together)
            self._inbox.submitted.append(request)
            self._changed.notify()

    def abort(self, request_id: str) -> None:
        """Requests the end of a request. Its id stays in use until the engine has removed the request."""
        with self._changed:
            if request_id in self._held:
                self._inbox.aborted.append(request_id)
                self._changed.notify()

    async def exchange(self, take: Callable[[], None], version: int, *, cut: bool) -> None:
        """Lets `take` change the weights on the engine's thread, when no request runs. Waiting requests go on waiting.

        `cut`: requests that run end with WeightsChanged; else they finish first. One exchange at a time. Raises
        ReplicaStopping if the engine stops or has stopped; EngineFailed if `take` fails, which ends the engine.
        """
        loop = asyncio.get_running_loop()
        change = _Change(take, version, cut, loop, loop.create_future())
        with self._changed:
            if self._stopping or self._failure is not None:
                raise ReplicaStopping(f"the engine stopped: {self._failure or 'the server is shutting down'}")
            self._inbox.change = change
            self._changed.notify()
        await change.done

    # --- the engine's thread -----------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while (inbox := self._wait()) is not None:
                if inbox:
                    self._take(inbox)
                self._exchange_if_idle()
                items = self._step() if self._engine.has_work else []
                self._state = self._engine.state()
                self._send(items)
            self._fail(ReplicaStopping("the server is shutting down", retry_after=1.0))
        except ReplicaLost as lost:  # a process that the engine needs is gone: no request is to blame
            self._stop_for(lost.message, lost, lost)
        except Exception as error:  # noqa: BLE001 - anything unexpected is a failure of the whole engine
            reason = error.message if isinstance(error, MrpServeError) else type_and_line(error)
            self._stop_for(reason, EngineFailed(f"the engine stopped: {reason}"), error)

    def _stop_for(self, reason: str, ending: MrpServeError, error: Exception) -> None:
        """Stops for good. `ending`: the error of its requests."""
        _log.error("the engine stopped", extra={"exception": without_message(error)})
        with self._changed:
            self._failure = reason
        self._fail(ending)

    def _step(self) -> list[Item]:
        """One step of the engine: for each request its progress, then its events."""
        self._step_began = self._clock()
        try:
            events = self._engine.step()
        finally:
            self._step_began = None
        ended = (RequestFailed(event.request_id, event.error) if event.error else event for event in events)
        return [*self._engine.progress, *ended]

    def _wait(self) -> _Inbox | None:
        """The inbox, as soon as there is work. None when stopping."""
        with self._changed:
            while not (self._stopping or self._inbox or self._engine.has_work):
                self._changed.wait()
            if self._stopping:
                return None
            if not self._inbox:
                return _EMPTY
            inbox, self._inbox = self._inbox, _Inbox()
            self._on_the_way = len(inbox.submitted)
            return inbox

    def _take(self, inbox: _Inbox) -> None:
        for request in inbox.submitted:
            self._engine.enqueue(request)
        for request_id in inbox.aborted:
            self._engine.abort(request_id)
            with self._changed:
                self._held.pop(request_id, None)
        if inbox.change is not None:
            self._hold_for(inbox.change)
        self._engine.admit()
        with self._changed:  # counted before the step, since the step may be long
            self._state, self._on_the_way = self._engine.state(), 0

    def _hold_for(self, change: _Change) -> None:
        self._change = change
        self._engine.hold()
        if change.cut:
            ended = self._engine.abort_running()
            why = "the weights are being exchanged, and the setting weights_update is abort"
            self._send([RequestFailed(request_id, WeightsChanged(why, retry_after=1.0)) for request_id in ended])

    def _exchange_if_idle(self) -> None:
        """Makes the change that waits, once no request runs."""
        change = self._change
        if change is None or self._engine.state().num_running:
            return
        self._engine.exchange(change.take, change.version)
        self._change = None
        change.end()

    def _fail(self, error: MrpServeError) -> None:
        with self._changed:
            failed = list(self._held)
            change, self._change, self._inbox.change = self._change or self._inbox.change, None, None
        if change is not None:
            change.end(copy(error))
        self._send([RequestFailed(request_id, copy(error)) for request_id in failed])  # raising extends a traceback

    def _send(self, items: list[Item]) -> None:
        """Hands on the items of requests that nobody has aborted."""
        due: list[Item] = []
        with self._changed:
            for item in items:
                if (held := self._held.get(item.request_id)) is None:
                    continue
                due += held.due(item)
                if ends(item):
                    del self._held[item.request_id]
        self._deliver(due)


class AsyncEngine(EngineThread):
    """An `EngineThread` for event loops of the same process, which get the items of each request as a stream."""

    def __init__(
        self,
        engine: Engine,
        max_waiting: int = defaults.MAX_WAITING,
        stall_timeout_s: float = defaults.STEP_TIMEOUT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._streams = RequestStreams(self.abort)
        super().__init__(engine, self._streams.deliver, max_waiting, stall_timeout_s, clock)

    def generate(self, request: GenerationRequest) -> AsyncGenerator[BlockEvent | BlockProgress]:
        """The request's block events, and its steps if it asks for them. The last item has a finish reason.

        Closing the generator aborts the request. Raises what `Engine.validate` and `submit` raise; ReplicaStopping if
        the engine stops; EngineFailed; OutOfMemory if the device had no memory for this request.
        """
        self._engine.validate(request)
        return self._streams.open(request.request_id, partial(self.submit, request))
