"""Micro-batches: a step of some running requests, and two of them that overlap host and device.

A step is a forward of the backbone, then forwards of MRP until no request needs MRP. While a micro-batch's forward is
under way on the device, the engine attends to the other one.

One micro-batch of all n requests takes a forward T(n) and the host's time H(n), two halves 2 max(T(n / 2), H(n) / 2).
Where a forward mostly reads weights, halves cost more than they hide. So `auto` compares both by the measured times. On
a CPU nothing is hidden, since the forward and the host use the same cores.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain

from service.decode.policy import Prediction
from service.engine.config import Overlapping
from service.engine.drafting.planner import DraftPlanner
from service.engine.forward.model_forward import Network
from service.engine.forward.rows import Row
from service.engine.forward.runner import ModelRunner, OomBackoff, Pending
from service.engine.request import ForwardKind
from service.engine.running_request import RunningRequest
from service.engine.scheduler import StepRows
from service.errors import DecodingFailed, MrpServeError, OutOfMemory
from service.tracebacks import type_and_line, without_message

_log = logging.getLogger(__name__)

#: weight of a step in the running mean; the maximum of the time of halves over the time of one micro-batch
_NEW_WEIGHT, _MAX_RATIO = 1 / 16, 0.97
#: the maximum of requests that are never divided
_MAX_UNDIVIDED = 8


class ForwardExecutor:
    """Begins the forwards of an engine, and measures their time. `pop_seconds`: the seconds since its last call."""

    def __init__(self, runner: ModelRunner, clock: Callable[[], float]) -> None:
        self._runner = runner
        self._backoffs: dict[Network, OomBackoff] = {"backbone": OomBackoff(), "mrp": OomBackoff()}
        self._clock, self._seconds = clock, 0.0

    def begin(self, network: Network, plan: StepRows) -> Pending[Prediction | None]:
        start = self._clock()
        forward = partial(self._runner.begin, network)
        pending = self._backoffs[network].begin(forward, [row for _, rows in plan for row in rows])
        self._seconds += self._clock() - start
        return pending

    def wait(self, pending: Pending[Prediction | None]) -> list[Prediction | None]:
        start = self._clock()
        predictions = pending()
        self._seconds += self._clock() - start
        return predictions

    def pop_seconds(self) -> float:
        seconds, self._seconds = self._seconds, 0.0
        return seconds


class MicroBatch:
    """A step of the requests of a plan. Its first forward is under way as soon as it exists."""

    def __init__(self, plan: StepRows, executor: ForwardExecutor, planner: DraftPlanner) -> None:
        self._plan, self._executor, self._planner = plan, executor, planner
        self.requests = [running for running, _ in plan]
        self._work, self._mrp_rows = planner.work, list[int]()
        self._refines = False
        self._pending = executor.begin("backbone", plan)

    def advance(self, counts: Counter[ForwardKind]) -> bool:
        """Waits for the forward, passes on its predictions and begins the next one. False: the step is over.

        `counts`: the number of requests by kind of forward, to which this forward is added.
        """
        self._planner.resume(self._work)
        kinds = list[tuple[ForwardKind, ...]]()
        for running, rows, predictions in _served(self._plan, self._executor.wait(self._pending)):
            try:
                if self._refines:
                    kinds.append(running.receive_refinement(predictions))
                else:
                    kinds.append(running.receive_predictions(rows, predictions))
            except Exception as error:  # noqa: BLE001 - any error here concerns only this request
                end_alone(running, error)
        counts.update(chain.from_iterable(kinds))
        self._refines = True
        self._plan = [(running, rows) for running in self.requests if (rows := running.next_refinement())]
        if self._plan:
            self._mrp_rows.append(sum(len(rows) for _, rows in self._plan))
            self._pending = self._executor.begin("mrp", self._plan)
        else:
            self._planner.end(self._mrp_rows)
        return bool(self._plan)


class TwoBatchOverlap:
    """Chooses the number of micro-batches. `asynchronous`: whether the host works while the device computes."""

    def __init__(self, setting: Overlapping, planner: DraftPlanner, *, asynchronous: bool) -> None:
        self._setting, self._planner, self._asynchronous = setting, planner, asynchronous
        self._host = 0.0

    def micro_batches(self, num_running: int) -> int:
        if self._setting == "off" or num_running < 2:
            return 1
        if self._setting == "on":
            return 2
        if not self._asynchronous or num_running <= _MAX_UNDIVIDED:
            return 1
        half, host, forwards = -(-num_running // 2), self._host, self._planner.forward_time
        halves = 2 * max(forwards(half), host * half)
        return 2 if halves < _MAX_RATIO * (forwards(num_running) + host * num_running) else 1

    def record(self, seconds: float, requests: int) -> None:
        if requests:
            self._host += _NEW_WEIGHT * (seconds / requests - self._host)


def _served(
    plan: StepRows, results: list[Prediction | None]
) -> Iterator[tuple[RunningRequest, list[Row], list[Prediction]]]:
    """The requests with their predictions. Requests that have ended are left out. Requests without memory fail."""
    end = 0
    for running, rows in plan:
        start, end = end, end + len(rows)
        predictions = results[start:end]
        if running.finish_reason is not None:
            continue
        if None not in predictions:
            yield running, rows, predictions  # type: ignore[misc]  # none of them is None
        else:
            running.fail(OutOfMemory("the device ran out of memory in a step of this request", retry_after=1.0))


def end_alone(running: RunningRequest, error: Exception) -> None:
    """Ends the request whose bookkeeping raised an error. No message is logged, since it may quote a prompt."""
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
