"""Runs the engine on its own thread, which delivers the outputs of each step at its end.

Requests and aborts wait in an inbox under one lock until the next step. An unexpected error in a step fails all
requests, and the thread stays unhealthy with that reason. Between two steps the thread runs tasks: weight updates,
pauses, sleep. While the engine is paused or asleep, it only ends requests that are aborted or over their time limit.
"""

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from copy import copy
from dataclasses import dataclass, field

from service.engine.engine import Engine
from service.engine.observer import EngineState
from service.engine.request import GenerationRequest, RequestFailed
from service.engine.streams import EngineOutput, ends
from service.errors import (
    EngineFailed,
    InvalidRequest,
    MrpServeError,
    OutOfMemory,
    QueueFull,
    ReplicaLost,
    ReplicaStopping,
    WeightsChanged,
)
from service.settings import defaults
from service.tracebacks import type_and_line, without_message

_log = logging.getLogger(__name__)

#: seconds between two checks of the time limits of requests while the engine is halted
_POLL_S = 0.25


@dataclass(slots=True, eq=False)
class _Task:
    """Work for the engine's thread between two steps."""

    work: Callable[[], None] = field(repr=False)
    when_idle: bool  # it waits until no request runs
    abort: bool  # running requests are aborted; else they finish first
    was_paused: bool = False  # whether the engine was paused before running requests were resumed for this task
    done: Future[None] = field(default_factory=Future)


@dataclass(slots=True)
class _Inbox:
    submitted: list[GenerationRequest] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    task: _Task | None = None

    def __bool__(self) -> bool:
        return bool(self.submitted or self.aborted or self.task)


@dataclass(slots=True)
class _Undelivered:
    """The outputs of a request that are not delivered yet. `together`: the number of outputs delivered at once."""

    stream_interval: int
    outputs: list[EngineOutput] = field(default_factory=list)

    def add(self, output: EngineOutput) -> list[EngineOutput]:
        """The outputs to deliver now that this one is there. With the last output these are all."""
        self.outputs.append(output)
        if len(self.outputs) < self.stream_interval and not ends(output):
            return []
        due, self.outputs = self.outputs, []
        return due


class EngineThread:
    """Owns the thread that steps an engine. `start` it once, `stop` it once.

    `deliver`: gets the outputs of a step in their order, on the engine's thread. It must be quick and not raise.
    """

    def __init__(
        self, engine: Engine, deliver: Callable[[list[EngineOutput]], None], max_waiting: int = defaults.MAX_WAITING
    ) -> None:
        self._engine, self._deliver, self._max_waiting = engine, deliver, max_waiting
        self._changed = threading.Condition()
        self._inbox = _Inbox()
        self._undelivered: dict[str, _Undelivered] = {}  # by the id of every request in progress
        self._state = engine.state()
        self._num_arriving = 0  # requests out of the inbox that `_state` does not count yet
        self._stopping = False
        self._failure: str | None = None
        self._task: _Task | None = None
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
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
        if self._failure is None and not self._stopping and not self._thread.is_alive():
            return "the engine's thread is not running"
        return self._failure

    def state(self) -> EngineState:
        return self._state

    def submit(self, request: GenerationRequest) -> None:
        """Submits a request that `validate` has accepted.

        Raises QueueFull if `max_waiting` requests wait; InvalidRequest if its id is in use; ReplicaStopping while the
        engine is stopping or stopped.
        """
        with self._changed:
            if self._failure is not None:
                raise ReplicaStopping(f"the engine stopped: {self._failure}", retry_after=1.0)
            if self._stopping:
                raise ReplicaStopping("the server is shutting down", retry_after=1.0)
            if request.request_id in self._undelivered:
                raise InvalidRequest(f"request id {request.request_id!r} is in use", param="request_id")
            waiting = self._state.num_waiting + self._num_arriving + len(self._inbox.submitted)
            if waiting >= self._max_waiting:
                raise QueueFull(f"{waiting} requests are waiting, allowed are {self._max_waiting}", retry_after=1.0)
            self._undelivered[request.request_id] = _Undelivered(request.stream_interval)
            self._inbox.submitted.append(request)
            self._changed.notify()

    def abort(self, request_id: str) -> None:
        with self._changed:
            if request_id in self._undelivered:
                self._inbox.aborted.append(request_id)
                self._changed.notify()

    async def run(self, work: Callable[[], None], *, when_idle: bool = False, abort: bool = False) -> None:
        """Runs `work` on the engine's thread, after the current step. One call at a time.

        `when_idle`: it waits until no request runs. Until then waiting requests stay queued, and paused requests run.
        `abort`: running requests end with WeightsChanged; else they finish first. Raises ReplicaStopping; OutOfMemory
        from `work`, which then has changed nothing. Any other error of `work` ends the engine: EngineFailed.
        """
        task = _Task(work, when_idle, abort)
        task.done.set_running_or_notify_cancel()  # the caller's cancellation does not stop it
        with self._changed:
            if self._stopping or self._failure is not None:
                raise ReplicaStopping(f"the engine stopped: {self._failure or 'the server is shutting down'}")
            self._inbox.task = task
            self._changed.notify()
        await asyncio.wrap_future(task.done)

    def _run(self) -> None:
        try:
            self._engine.use_device()
            while (inbox := self._wait()) is not None:
                if inbox:
                    self._handle(inbox)
                self._run_task()
                outputs = self._step() if self._engine.has_work else []
                self._state = self._engine.state()
                self._send(outputs)
            self._fail(ReplicaStopping("the server is shutting down", retry_after=1.0))
        except Exception as error:  # noqa: BLE001 - anything unexpected is a failure of the whole engine
            _log.error("the engine stopped", extra={"exception": without_message(error)})
            reason = error.message if isinstance(error, MrpServeError) else type_and_line(error)
            with self._changed:
                self._failure = reason
            # ReplicaLost: a process that the engine needs is gone, so no request is the cause
            self._fail(error if isinstance(error, ReplicaLost) else EngineFailed(f"the engine stopped: {reason}"))

    def _step(self) -> list[EngineOutput]:
        events = self._engine.expire() if self._engine.halted else self._engine.step()
        ended = (RequestFailed(event.request_id, event.error) if event.error else event for event in events)
        return [*self._engine.progress, *ended]

    def _wait(self) -> _Inbox | None:
        engine = self._engine
        with self._changed:
            while not (self._stopping or self._inbox or self._task or (engine.has_work and not engine.halted)):
                if not self._changed.wait(_POLL_S if engine.has_work else None):
                    break
            if self._stopping:
                return None
            inbox, self._inbox = self._inbox, _Inbox()
            self._num_arriving = len(inbox.submitted)
            return inbox

    def _handle(self, inbox: _Inbox) -> None:
        for request in inbox.submitted:
            self._engine.enqueue(request)
        for request_id in inbox.aborted:
            self._engine.abort(request_id)
            with self._changed:
                self._undelivered.pop(request_id, None)
        if inbox.task is not None:
            self._begin_task(inbox.task)
        self._engine.start_queued()
        with self._changed:  # counted before the step, since the step may be long
            self._state, self._num_arriving = self._engine.state(), 0

    def _begin_task(self, task: _Task) -> None:
        self._task = task
        if task.when_idle:
            task.was_paused = self._engine.paused
            self._engine.queue_held, self._engine.paused = True, False
            if task.abort:
                reason = "the weights are being updated with mode abort"
                aborted = self._engine.abort_running()
                self._send([RequestFailed(name, WeightsChanged(reason, retry_after=1.0)) for name in aborted])

    def _run_task(self) -> None:
        task = self._task
        if task is None or (task.when_idle and not self._engine.is_idle):
            return
        if task.when_idle:
            self._engine.queue_held, self._engine.paused = False, task.was_paused
        error: OutOfMemory | None = None
        try:
            task.work()
        except OutOfMemory as problem:
            error = problem
        self._task, self._state = None, self._engine.state()
        if error is None:
            task.done.set_result(None)
        else:
            task.done.set_exception(error)

    def _fail(self, error: MrpServeError) -> None:
        with self._changed:
            failed = list(self._undelivered)
            task, self._task, self._inbox.task = self._task or self._inbox.task, None, None
        if task is not None:
            task.done.set_exception(copy(error))
        self._send([RequestFailed(request_id, copy(error)) for request_id in failed])  # raising extends a traceback

    def _send(self, outputs: list[EngineOutput]) -> None:
        due: list[EngineOutput] = []
        with self._changed:
            for output in outputs:
                if (undelivered := self._undelivered.get(output.request_id)) is None:
                    continue
                due += undelivered.add(output)
                if ends(output):
                    del self._undelivered[output.request_id]
        self._deliver(due)
