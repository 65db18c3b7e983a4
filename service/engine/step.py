"""A step of the engine that is under way: a forward of the backbone, then forwards of MRP until no request needs MRP.

The next step begins before the results of this one are read, with all requests that can name their next rows. While the
host reads and plans, the device computes.
"""

import logging
from collections import Counter
from collections.abc import Sequence
from functools import partial
from itertools import accumulate
from itertools import chain as joined
from typing import NamedTuple, cast

from service.decode.policy import Prediction
from service.engine.drafting.planner import DraftPlanner
from service.engine.forward.model_forward import Network
from service.engine.forward.pending import Pending
from service.engine.forward.runner import ModelRunner, OomBackoff, attempt
from service.engine.request import ForwardKind
from service.engine.running_request import RunningRequest
from service.engine.scheduler import StepRows
from service.errors import DecodingFailed, MrpServeError, OutOfMemory
from service.tracebacks import type_and_line, without_message

_log = logging.getLogger(__name__)


class ForwardExecutor:
    """Begins the forwards of an engine, in parts where memory is short."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner
        self._backoffs: dict[Network, OomBackoff] = {"backbone": OomBackoff(), "mrp": OomBackoff()}

    def begin(self, network: Network, plan: StepRows) -> Pending[Prediction | None]:
        rows = [row for _, rows in plan for row in rows]
        return self._backoffs[network].begin(partial(self._runner.begin, network), rows)

    def begin_chain(self, plan: StepRows) -> Sequence[Pending[Prediction | None]] | None:
        """See `ModelRunner.begin_chain`. None also if the device has no memory for it."""
        rows = [row for _, rows in plan for row in rows]
        counts = [1 + running.num_chained for running, rows in plan for _ in rows]
        return attempt(partial(self._runner.begin_chain, counts=counts), rows)


class _Forward(NamedTuple):
    """A forward that has begun."""

    network: Network
    plan: StepRows
    pending: Pending[Prediction | None]


class RunningStep:
    """A step of the requests of a plan. It begins as soon as it exists, as far as no result is needed."""

    def __init__(self, plan: StepRows, executor: ForwardExecutor, planner: DraftPlanner) -> None:
        self._executor, self._planner = executor, planner
        self._with_mrp = [running for running, _ in plan if running.drafts.uses_mrp]
        self._work = planner.work
        self._mrp_rows: list[int] = []
        self._forwards = [self._begin("backbone", plan)]
        named = [running for running in self._with_mrp if running.pace is not None]
        for chains in (True, False):
            group = [running for running in named if running.chains is chains]
            if plan := [(running, rows) for running in group if (rows := running.next_refinement_ahead())]:
                self._forwards += self._begin_refinements(plan)

    def finish(self, counts: Counter[ForwardKind]) -> None:
        """Reads the forwards in their order, passes on their predictions, and begins those that need results.

        `counts`: the number of requests by kind of forward, to which this step's forwards are added.
        """
        self._planner.work = self._work
        for forward in self._forwards:
            self._read(forward, counts)
        while plan := [(running, rows) for running in self._with_mrp if (rows := running.next_refinement())]:
            for forward in self._begin_refinements(plan):
                self._read(forward, counts)
        self._planner.end(self._mrp_rows)

    def _begin_refinements(self, plan: StepRows) -> list[_Forward]:
        """Begins a forward of MRP, and those that can follow it before it is read: as a chain, if the device can."""
        if not any(running.chains or running.pace for running, _ in plan):
            return [self._begin("mrp", plan)]
        chain = self._executor.begin_chain(plan) if any(running.chains for running, _ in plan) else None
        if chain is None:
            plan = [(running, rows) for running, rows in plan if not running.waits_without_chain()]
        ends = accumulate(len(rows) for _, rows in plan)
        end_of = {running: end for (running, _), end in zip(plan, ends, strict=True)}
        forwards: list[_Forward] = []
        while plan and (chain is None or len(forwards) < len(chain)):
            pending = None
            if chain is not None:  # the requests' last rows go on
                spans = [range(end_of[running] - len(rows), end_of[running]) for running, rows in plan]
                pending = chain[len(forwards)].of_rows([*joined(*spans)])
            forwards.append(self._begin("mrp", plan, pending))
            plan = [(running, rows) for running in end_of if (rows := running.next_refinement_ahead())]
        return forwards

    def _begin(self, network: Network, plan: StepRows, pending: Pending[Prediction | None] | None = None) -> _Forward:
        """`pending`: the forward if it has begun."""
        if network == "mrp":
            self._mrp_rows.append(sum(len(rows) for _, rows in plan))
        pending = pending or self._executor.begin(network, plan)
        end = 0
        for running, rows in plan:
            start, end = end, end + len(rows)
            try:
                running.begin(rows, pending.anchors[start:end])
            except Exception as error:  # noqa: BLE001 - any error here concerns only this request
                end_alone(running, error)
        return _Forward(network, plan, pending)

    def _read(self, forward: _Forward, counts: Counter[ForwardKind]) -> None:
        kinds: list[ForwardKind] = []
        end = 0
        results = cast(list[Prediction], forward.pending())  # or None, for a row that had no memory
        for running, rows in forward.plan:
            start, end = end, end + len(rows)
            if running.finish_reason is not None:
                continue
            predictions = results[start:end]
            if None in predictions:
                running.fail(OutOfMemory("the device ran out of memory in a step of this request", retry_after=1.0))
                continue
            try:
                if forward.network == "mrp":
                    kinds += running.receive_refinement(rows, predictions)
                else:
                    kinds += running.receive_predictions(rows, predictions)
            except Exception as error:  # noqa: BLE001 - any error here concerns only this request
                end_alone(running, error)
        counts.update(kinds)


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
