"""The reports of the engine to an observer. The replica's metrics implement `Observer`."""

import logging
from collections.abc import Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from service.decode.block import Step
from service.engine.request import BlockEvent, ForwardKind, GenerationRequest
from service.ipc.data import Data
from service.tracebacks import type_and_line

_log = logging.getLogger(__name__)


class EngineState(Data, frozen=True):
    """The current state of the engine. Pages that only the prefix cache holds count as free.

    `num_waiting`: also those preempted, whose pages others have.
    """

    num_running: int
    num_waiting: int
    kv_pages_used: int
    kv_pages_total: int
    paused: bool = False
    sleep_level: int = 0

    @property
    def kv_usage(self) -> float:
        return self.kv_pages_used / max(1, self.kv_pages_total)


class CacheCounts(Struct):
    """The counts of the KV cache since the last report.

    `looked_up`: prompt tokens that requests looked up in the prefix cache when they started; `cached`: those that it
    had. `preemptions`: how often a request lost its pages. `recomputed`: tokens to be stored once more, of requests
    that have pages again.
    """

    looked_up: int = 0
    cached: int = 0
    preemptions: int = 0
    recomputed: int = 0


class StepReport(Struct, frozen=True):
    """One engine step."""

    seconds: float
    rows: int
    block_size: int  # the positions of a row
    forwards: Mapping[ForwardKind, int]  # kind of forward -> number of requests that had a row in it
    state: EngineState
    cache: CacheCounts
    eager_forwards: int = 0  # the forwards on CUDA since the last report that ran without a CUDA graph


class Observer(Protocol):
    """The engine's thread calls it, so it must be quick. Its errors are logged and change nothing."""

    def on_step(self, report: StepReport) -> None:
        """After every engine step."""

    def on_event(self, request: GenerationRequest, event: BlockEvent, steps: Sequence[Step]) -> None:
        """After every finished block and every end of a request, aborts included. `steps`: the block's steps."""


class SafeObserver:
    """Passes reports to an observer, if any. Logs its errors, since an error of measuring must not end requests."""

    def __init__(self, observer: Observer | None) -> None:
        self._observer = observer

    def on_step(self, report: StepReport) -> None:
        try:
            if self._observer is not None:
                self._observer.on_step(report)
        except Exception as error:  # noqa: BLE001 - any error of an observer concerns only the measurement
            _log.error("an observer failed after a step: %s", type_and_line(error))

    def on_event(self, request: GenerationRequest, event: BlockEvent, steps: Sequence[Step]) -> None:
        try:
            if self._observer is not None:
                self._observer.on_event(request, event, steps)
        except Exception as error:  # noqa: BLE001 - as above
            _log.error("an observer failed on request %s: %s", request.request_id, type_and_line(error))
