"""The statistics of a running request, its events and its progress.

Counts change with every step. The statistics of an event, which are frozen, are made once, when a block or the request
ends: to make them anew for every change took longer than a step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from service.decode.block import PositionLogprobs, Step
from service.engine.request import (
    BlockEvent,
    BlockProgress,
    FinishReason,
    ForwardCounts,
    ForwardKind,
    GenerationRequest,
    Stats,
)
from service.errors import MrpServeError

#: in the order of the fields of `ForwardCounts`
_KINDS: tuple[ForwardKind, ...] = ("prefill", "denoise", "verify", "commit", "mrp")


@dataclass(frozen=True, slots=True)
class EventEnd:
    """The fields of an event that only the end of a block or of the request has, with the names of `BlockEvent`."""

    reason: FinishReason | None = None
    constraint_met: bool | None = None
    position_logprobs: tuple[tuple[int, PositionLogprobs], ...] = ()
    error: MrpServeError | None = None


_GOES_ON = EventEnd()


class RequestStats:
    """The statistics and events of one request. `submitted`: the time when it came (the engine's clock, seconds).

    `mrp_steps`: the MRP forwards for its drafts, None if it has none. `decoded_tokens`: as in `Stats`.
    `events`: the events that nobody has taken, with the steps of their blocks. `progress`: likewise.
    """

    def __init__(self, request: GenerationRequest, submitted: float, cached_tokens: int, mrp_steps: int | None) -> None:
        self._request, self._submitted = request, submitted
        self.cached_tokens, self._mrp_steps = cached_tokens, mrp_steps
        self.events: list[tuple[BlockEvent, Sequence[Step]]] = []
        self.progress: list[BlockProgress] = []
        self._forwards = dict.fromkeys(_KINDS, 0)
        self.decoded_tokens = self._proposed = self._accepted = self._remasked = self._forced = 0
        self._queue_s = 0.0
        self._prefill_s: float | None = None
        self._first_block_s: float | None = None
        self._clock: Callable[[], float]
        self._version: int

    def begin(self, clock: Callable[[], float], version: int) -> None:
        """The request has left the queue. `clock`: of its times. `version`: of the weights that decode it."""
        self._clock, self._version = clock, version
        self._queue_s = self._age()

    def count(self, kinds: Iterable[ForwardKind]) -> None:
        """Counts forwards."""
        for kind in kinds:
            self._forwards[kind] += 1
            if kind == "prefill":
                self._prefill_s = self._age()

    def proceed(self, index: int, first: int, steps: Sequence[Step]) -> None:
        """Tells new steps of block `index`, the first of which is number `first`."""
        self.progress.append(BlockProgress(self._request.request_id, index, first, tuple(steps), self._age()))

    def emit(self, index: int, tokens: tuple[int, ...], steps: Sequence[Step] = (), end: EventEnd = _GOES_ON) -> None:
        """Tells the end of a block, which gave these tokens by these steps, or the end of the request."""
        self._add(steps)
        kept = tuple(steps) if self._request.keep_steps else ()
        event = BlockEvent(
            self._request.request_id, index, tokens, self._stats(), end.reason, kept,
            end.error, end.constraint_met, end.position_logprobs, self._version,
        )  # fmt: skip
        self.events.append((event, steps))

    def _add(self, steps: Iterable[Step]) -> None:
        for kind, revealed, remasked, drafted, accepted, _ in steps:
            if drafted:
                self._proposed += len(drafted)
                self._accepted += accepted
            if remasked:
                self._remasked += len(remasked)
            if kind == "forced":
                self._forced += len(revealed)

    def _stats(self) -> Stats:
        age = self._age()
        if self._first_block_s is None:
            self._first_block_s = age
        return Stats(
            ForwardCounts(*self._forwards.values()),
            self.decoded_tokens,
            self._proposed,
            self._accepted,
            self._remasked,
            self._forced,
            self._mrp_steps,
            self.cached_tokens,
            self._queue_s,
            self._prefill_s,
            self._first_block_s,
            age,
        )

    def _age(self) -> float:
        """Seconds since submission."""
        return self._clock() - self._submitted
