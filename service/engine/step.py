"""A step of the engine that is under way: a forward of the backbone, then forwards of MRP until no request needs MRP.

The next step begins before the results of this one are read, with all requests that can name their next rows. While the
host reads and plans, the device computes.
"""

import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import accumulate, chain
from typing import NamedTuple

from service.engine.drafting.planner import DraftPlanner
from service.engine.forward.model_forward import Network
from service.engine.forward.oom_backoff import OomBackoff
from service.engine.forward.pending import Pending
from service.engine.forward.rows import Row
from service.engine.request import ForwardKind
from service.engine.running_request import RunningRequest
from service.engine.scheduler import StepRows
from service.errors import DecodingFailed, MrpServeError, OutOfMemory
from service.tracebacks import type_and_line, without_message

_log = logging.getLogger(__name__)


class _Forward(NamedTuple):
    """A forward that has begun."""

    network: Network
    plan: StepRows
    pending: Pending


class RunningStep:
    """A step of the requests of a plan. It begins as soon as it exists, as far as no result is needed."""

    def __init__(self, plan: StepRows, backoff: OomBackoff, planner: DraftPlanner) -> None:
        self._backoff, self._planner, self._work = backoff, planner, planner.work
        self._with_mrp = [running for running, _ in plan if running.drafts.uses_mrp]
        self._forwards = [self._begin("backbone", plan)]
        for replays in ("tokens", "drafts", None):
            group = [running for running in self._with_mrp if running.replays == replays]
            self._forwards += self._begin_refinements(_refinements_ahead(group))

    def finish(self, counts: Counter[ForwardKind]) -> None:
        """Reads the forwards in their order, passes on their predictions, and begins those that need results.

        `counts`: the number of requests by kind of forward, to which this step's forwards are added.
        """
        self._planner.work = self._work
        for forward in self._forwards:
            self._read(forward, counts)
        while plan := _without_stored([(r, rows) for r in self._with_mrp if (rows := r.next_refinement())]):
            for forward in self._begin_refinements(plan):
                self._read(forward, counts)
        self._planner.end()

    def _begin_refinements(self, plan: StepRows) -> list[_Forward]:
        """Begins a forward of MRP, and those that can follow it before it is read: as replays, if the device can."""
        if (replays := self._begin_replays(plan)) is not None:
            return self._begun_replays(plan, replays)
        plan = [(running, rows) for running, rows in plan if not running.wait_for_results()]
        forwards, requests = list[_Forward](), [running for running, _ in plan]
        while plan:
            forwards.append(self._begin("mrp", plan))
            plan = _refinements_ahead(requests)
        return forwards

    def _begun_replays(self, plan: StepRows, replays: Iterable[Pending]) -> list[_Forward]:
        """All are over the same rows. After the first one a request goes on with its last rows."""
        ends = accumulate(len(rows) for _, rows in plan)
        end_of = {running: end for (running, _), end in zip(plan, ends, strict=True)}
        forwards = list[_Forward]()
        for pending in replays:
            if not plan:
                break
            spans = [range(end_of[running] - len(rows), end_of[running]) for running, rows in plan]
            forwards.append(self._register("mrp", plan, pending.of_rows([*chain(*spans)])))
            plan = _refinements_ahead(end_of)
        return forwards

    def _begin_replays(self, plan: StepRows) -> list[Pending] | None:
        if not any(running.replays for running, _ in plan):
            return None
        counts = [1 + running.num_replays for running, rows in plan for _ in rows]
        return self._backoff.begin_replays([row for _, rows in plan for row in rows], counts)

    def _begin(self, network: Network, plan: StepRows) -> _Forward:
        return self._register(network, plan, self._backoff.begin(network, [row for _, rows in plan for row in rows]))

    def _register(self, network: Network, plan: StepRows, pending: Pending) -> _Forward:
        anchors, too_large, end = pending.anchors, pending.too_large, 0
        for running, rows in plan:
            start, end = end, end + len(rows)
            try:
                if too_large and any(start <= index < end for index in too_large):
                    raise OutOfMemory("the device ran out of memory in a step of this request", retry_after=1.0)
                running.begin(rows, anchors[start:end])
            except Exception as error:  # noqa: BLE001 - any error here concerns only this request
                end_alone(running, error)
        return _Forward(network, plan, pending)

    def _read(self, forward: _Forward, counts: Counter[ForwardKind]) -> None:
        all_kinds: list[ForwardKind] = []
        is_mrp, end = forward.network == "mrp", 0
        is_needed = not is_mrp or any(running.needs_refinement(rows) for running, rows in forward.plan)
        results = forward.pending() if is_needed else ()
        for running, rows in forward.plan:
            start, end = end, end + len(rows)
            if running.finish_reason is not None:
                continue
            kinds = (rows[0].kind,) if len(rows) == 1 else kinds_of(rows)
            all_kinds += kinds
            running.stats.count(kinds)
            try:
                if is_mrp:
                    running.receive_refinement(rows, results[start:end])
                else:
                    running.receive_predictions(rows, results[start:end])
            except Exception as error:  # noqa: BLE001 - any error here concerns only this request
                end_alone(running, error)
        counts.update(all_kinds)


def kinds_of(rows: Sequence[Row]) -> tuple[ForwardKind, ...]:
    """The kinds of a request's rows in a forward. A commit counts if nothing else does, a denoise beside no drafts."""
    kinds = {row.kind for row in rows}
    if len(kinds) > 1:
        kinds.discard("commit")
    if "verify" in kinds:
        kinds.discard("denoise")
    return tuple(kinds)


def _refinements_ahead(requests: Iterable[RunningRequest]) -> StepRows:
    live = [running for running in requests if running.finish_reason is None]
    return _without_stored([(running, rows) for running in live if (rows := running.next_refinement_ahead())])


def _without_stored(plan: StepRows) -> StepRows:
    """The rows for MRP, none while only stored blocks ask for it that can wait: it reads them all in one forward."""
    return plan if any(rows[-1].sampling is not None or running.blocks.mrp_is_due for running, rows in plan) else []


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
