"""Micro-batches: a step of some running requests, and two of them that overlap host and device.

A step is a forward of the backbone, then forwards of MRP until no request needs one. A micro-batch is begun and then
advances from forward to forward. In between, its forward may still be under way on the device, and the engine attends
to the other micro-batch. An unexpected error in the bookkeeping of one request ends that request only.

One micro-batch of all requests takes a forward T(n) and the host's time H(n). Two halves both take half of the host's
time, hidden behind the other half's forward: 2 max(T(n / 2), H(n) / 2). Where a forward mostly reads weights, T(n / 2)
is T(n), and halves cost more than they hide. So `auto` compares the two by the measured times. On a CPU nothing is
hidden, since the forward and the host use the same cores.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain

from service.decode.policy import Prediction
from service.engine.config import Overlapping
from service.engine.drafting.planner import DraftPlanner
from service.engine.forward.model_forward import Network
from service.engine.forward.oom_backoff import OomBackoff
from service.engine.forward.rows import Row
from service.engine.forward.runner import ModelRunner, Pending
from service.engine.request import ForwardKind
from service.engine.running_request import RunningRequest
from service.errors import DecodingFailed, MrpServeError, OutOfMemory
from service.tracebacks import type_and_line, without_message

_log = logging.getLogger(__name__)

#: the requests that have rows in a forward, and the rows
StepRows = list[tuple[RunningRequest, list[Row]]]

#: weight of a step in the running mean, and the gain of halves that is needed to take them
_FRESH, _GAIN = 1 / 16, 0.97
#: up to so many requests are never divided
_FEW = 8


class ForwardExecutor:
    """Begins the forwards of an engine. Also measures the time spent in them; `take_seconds` returns and resets it."""

    def __init__(self, runner: ModelRunner, clock: Callable[[], float]) -> None:
        self._runner = runner
        self._backoffs: dict[Network, OomBackoff] = {"backbone": OomBackoff(), "mrp": OomBackoff()}
        self._clock, self._seconds = clock, 0.0

    def begin(self, network: Network, plan: StepRows) -> Pending[Prediction | None]:
        """Begins a forward of a network."""
        began = self._clock()
        forward = partial(self._runner.begin, network)
        pending = self._backoffs[network].begin(forward, [row for _, rows in plan for row in rows])
        self._seconds += self._clock() - began
        return pending

    def wait(self, pending: Pending[Prediction | None]) -> list[Prediction | None]:
        """Waits for a forward."""
        began = self._clock()
        predictions = pending()
        self._seconds += self._clock() - began
        return predictions

    def take_seconds(self) -> float:
        """The seconds since the last call."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds


class MicroBatch:
    """A step of the requests of a plan. Its first forward is under way as soon as it exists."""

    def __init__(self, plan: StepRows, executor: ForwardExecutor, planner: DraftPlanner) -> None:
        self._plan, self._executor, self._planner = plan, executor, planner
        self.requests = [request for request, _ in plan]
        self._work, self._mrp_rows = planner.work, list[int]()
        self._refines = False
        self._pending = executor.begin("backbone", plan)

    def advance(self, counts: Counter[ForwardKind]) -> bool:
        """Waits for the forward, hands out its predictions and begins the next one. False: the step is over.

        `counts`: requests by kind of forward, to which this forward is added.
        """
        self._planner.resume(self._work)
        kinds = list[tuple[ForwardKind, ...]]()
        for request, rows, predictions in _served(self._plan, self._executor.wait(self._pending)):
            try:
                if self._refines:
                    kinds.append(request.accept_refinement(predictions))
                else:
                    kinds.append(request.accept(rows, predictions))
            except Exception as error:  # noqa: BLE001 - any error here concerns only this request
                end_alone(request, error)
        counts.update(chain.from_iterable(kinds))
        self._refines = True
        self._plan = [(request, rows) for request in self.requests if (rows := request.next_refinement())]
        if self._plan:
            self._mrp_rows.append(sum(len(rows) for _, rows in self._plan))
            self._pending = self._executor.begin("mrp", self._plan)
        else:
            self._planner.end(self._mrp_rows)
        return bool(self._plan)


class TwoBatchOverlap:
    """Chooses the number of micro-batches. `asynchronous`: whether the device computes while the host goes on."""

    def __init__(self, setting: Overlapping, planner: DraftPlanner, *, asynchronous: bool) -> None:
        self._setting, self._planner, self._asynchronous = setting, planner, asynchronous
        self._host = 0.0

    def micro_batches(self, running: int) -> int:
        """1 or 2. `running`: the number of running requests."""
        if self._setting == "off" or running < 2:
            return 1
        if self._setting == "on":
            return 2
        return 2 if self._asynchronous and running > _FEW and self._pays(running) else 1

    def note(self, seconds: float, requests: int) -> None:
        """Counts the host's time for a micro-batch. `requests`: the number of its requests."""
        if requests:
            self._host += _FRESH * (seconds / requests - self._host)

    def _pays(self, running: int) -> bool:
        half = -(-running // 2)
        host, forwards = self._host, self._planner.forwards_of
        return 2 * max(forwards(half), host * half) < _GAIN * (forwards(running) + host * running)


def _served(
    plan: StepRows, results: list[Prediction | None]
) -> Iterator[tuple[RunningRequest, list[Row], list[Prediction]]]:
    """The requests with their predictions. Left out: those that ended meanwhile, those without memory for a row."""
    end = 0
    for request, rows in plan:
        start, end = end, end + len(rows)
        predictions = results[start:end]
        if request.finish_reason is not None:
            continue
        if None not in predictions:
            yield request, rows, predictions  # type: ignore[misc]  # none of them is None
        else:
            request.fail(OutOfMemory("the device ran out of memory in a step of this request", retry_after=1.0))


def end_alone(running: RunningRequest, error: Exception) -> None:
    """Ends the request whose bookkeeping raised an error. No other request ends.

    The log gets the kind and place of an unexpected error. It does not get the message, which may quote a prompt.
    """
    if isinstance(error, MrpServeError):
        running.fail(error)
        return
    request_id, traceback = running.request.request_id, without_message(error)
    _log.error(
        "the decoding of a request failed: %s",
        type_and_line(error),
        extra={"request_id": request_id, "exception": traceback},
    )
    running.fail(DecodingFailed("decoding this request raised an unexpected error; see the server's log"))
