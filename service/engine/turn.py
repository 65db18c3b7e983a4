"""One step of some running requests: a forward of the backbone, then forwards of MRP until none of them needs one.

A turn is begun and then proceeds from forward to forward. In between, its forward may still be under way on the device,
and the engine attends to another turn. An unexpected error in the bookkeeping of one request ends that request only.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import chain

from service.decode.policy import Prediction
from service.engine.drafting.pricing import Pricing
from service.engine.forward.memory import FittingForward
from service.engine.forward.pending import AsyncRunner, Beginning, Pending
from service.engine.forward.rows import Row
from service.engine.request import ForwardKind
from service.engine.running_request import RunningRequest
from service.errors import DecodingFailed, MrpServeError, OutOfMemory
from service.tracebacks import kind_and_place, without_message

_log = logging.getLogger(__name__)

#: the sequences that have rows in a forward, and the rows
StepRows = list[tuple[RunningRequest, list[Row]]]


class Forwards:
    """The forwards of an engine. `seconds`: of `clock`, spent in them since the last `take_seconds`."""

    def __init__(self, runner: AsyncRunner, clock: Callable[[], float]) -> None:
        self._runner = runner
        self._evaluating, self._refining = FittingForward(), FittingForward()
        self._clock, self._seconds = clock, 0.0

    def evaluate(self, plan: StepRows) -> Pending[Prediction | None]:
        """Begins a forward of the backbone."""
        return self._begun(self._evaluating, self._runner.begin_evaluate, plan)

    def refine(self, plan: StepRows) -> Pending[Prediction | None]:
        """Begins a forward of MRP."""
        return self._begun(self._refining, self._runner.begin_refine, plan)

    def read(self, pending: Pending[Prediction | None]) -> list[Prediction | None]:
        """Waits for a forward."""
        began = self._clock()
        readings = pending()
        self._seconds += self._clock() - began
        return readings

    def take_seconds(self) -> float:
        """The seconds since the last call."""
        taken, self._seconds = self._seconds, 0.0
        return taken

    def _begun(self, fitting: FittingForward, begin: Beginning, plan: StepRows) -> Pending[Prediction | None]:
        began = self._clock()
        pending = fitting.begin(begin, [row for _, rows in plan for row in rows])
        self._seconds += self._clock() - began
        return pending


class Turn:
    """A turn of the sequences of a plan. Its first forward is under way as soon as it exists."""

    def __init__(self, plan: StepRows, forwards: Forwards, pricing: Pricing) -> None:
        self._plan, self._forwards, self._pricing = plan, forwards, pricing
        self.sequences = [sequence for sequence, _ in plan]
        self._work, self._refined = pricing.work, list[int]()
        self._refines = False
        self._pending = forwards.evaluate(plan)

    def proceed(self, counts: Counter[ForwardKind]) -> bool:
        """Waits for the forward, hands its readings out and begins the next one. False: the turn is over.

        `counts`: requests by kind of forward, to which this forward is added.
        """
        self._pricing.resume(self._work)
        kinds = list[tuple[ForwardKind, ...]]()
        for sequence, rows, readings in _served(self._plan, self._forwards.read(self._pending)):
            try:
                if self._refines:
                    kinds.append(sequence.accept_refinement(readings))
                else:
                    kinds.append(sequence.accept(rows, readings))
            except Exception as error:  # noqa: BLE001 - any error here concerns only this request
                end_alone(sequence, error)
        counts.update(chain.from_iterable(kinds))
        self._refines = True
        self._plan = [(sequence, rows) for sequence in self.sequences if (rows := sequence.next_refinement())]
        if self._plan:
            self._refined.append(sum(len(rows) for _, rows in self._plan))
            self._pending = self._forwards.refine(self._plan)
        else:
            self._pricing.end(self._refined)
        return bool(self._plan)


def _served(
    plan: StepRows, found: Iterable[Prediction | None]
) -> Iterator[tuple[RunningRequest, list[Row], list[Prediction]]]:
    """The sequences with their readings. Left out: those that ended meanwhile, those without memory for a row."""
    results, end = list(found), 0
    for sequence, rows in plan:
        start, end = end, end + len(rows)
        readings = results[start:end]
        if sequence.finish_reason is not None:
            continue
        if None not in readings:
            yield sequence, rows, readings  # type: ignore[misc]  # none of them is None
        else:
            sequence.fail(OutOfMemory("the device ran out of memory in a step of this request", retry_after=1.0))


def end_alone(sequence: RunningRequest, error: Exception) -> None:
    """Ends the request whose bookkeeping raised an error. No other request ends.

    Of an unexpected error, the log gets its kind and place. It does not get the message, which may quote a prompt.
    """
    if isinstance(error, MrpServeError):
        sequence.fail(error)
        return
    request_id, traceback = sequence.request.request_id, without_message(error)
    _log.error(
        "the decoding of a request failed: %s",
        kind_and_place(error),
        extra={"request_id": request_id, "exception": traceback},
    )
    sequence.fail(DecodingFailed("decoding this request raised an unexpected error; see the server's log"))
