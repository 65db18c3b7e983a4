"""What the engine tells whoever measures it. The metrics of the API implement `Observer`."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from service.engine.request import BlockEvent, ForwardKind, GenerationRequest
from service.tracebacks import kind_and_place

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EngineState:
    """What the engine holds right now. Pages that only the prefix cache holds are free."""

    num_running: int
    num_waiting: int
    kv_pages_used: int
    kv_pages_total: int

    @property
    def kv_usage(self) -> float:
        """Share of the KV pages in use, 0 to 1."""
        return self.kv_pages_used / max(1, self.kv_pages_total)


@dataclass(frozen=True, slots=True)
class StepReport:
    """One engine step. `forwards`: for each kind, how many requests had a row in a forward of it.

    `tokens_looked_up`: prompt tokens of the requests admitted in this step that asked the prefix cache;
    it had `tokens_cached` of them.
    """

    seconds: float
    rows: int
    forwards: Mapping[ForwardKind, int]
    state: EngineState
    tokens_looked_up: int = 0
    tokens_cached: int = 0


class Observer(Protocol):
    """Called on the engine's thread; must be quick. What it raises is logged and changes nothing."""

    def on_step(self, report: StepReport) -> None:
        """After every engine step."""

    def on_event(self, request: GenerationRequest, event: BlockEvent) -> None:
        """For every finished block and every end of a request (aborts too)."""


class SilentObserver:
    """Measures nothing."""

    def on_step(self, report: StepReport) -> None:
        """Ignored."""

    def on_event(self, request: GenerationRequest, event: BlockEvent) -> None:
        """Ignored."""


class HarmlessObserver:
    """Passes everything on to an observer and logs what that raises: measuring must not end requests."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer

    def on_step(self, report: StepReport) -> None:
        """Passed on."""
        try:
            self._observer.on_step(report)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is about measuring
            _log.error("an observer failed after a step: %s", kind_and_place(error))

    def on_event(self, request: GenerationRequest, event: BlockEvent) -> None:
        """Passed on."""
        try:
            self._observer.on_event(request, event)
        except Exception as error:  # noqa: BLE001 - as above
            _log.error("an observer failed on request %s: %s", request.request_id, kind_and_place(error))
