"""The statistics of a running request, its events and its progress.

Counts change with every step. The frozen statistics of an event are made only when a block or the request ends.
"""

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


@dataclass(frozen=True, slots=True)
class EventEnd:
    """The fields of an event that only the end of a block or of the request has, with the names of `BlockEvent`."""

    reason: FinishReason | None = None
    constraint_met: bool | None = None
    position_logprobs: tuple[tuple[int, PositionLogprobs], ...] = ()
    error: MrpServeError | None = None


_GOES_ON = EventEnd()


class RequestStats:
    """The statistics and events of one request. `submitted`: the time of its submission (engine's clock, seconds).

    `mrp_steps`: the MRP forwards for its drafts, None without drafts. `events`, `progress`: those not collected yet.
    """

    def __init__(self, request: GenerationRequest, submitted: float, cached_tokens: int, mrp_steps: int | None) -> None:
        self._request, self._submitted = request, submitted
        self.cached_tokens, self._mrp_steps = cached_tokens, mrp_steps
        self.events: list[tuple[BlockEvent, Sequence[Step]]] = []
        self.progress: list[BlockProgress] = []
        self._forwards = dict.fromkeys(ForwardCounts.__struct_fields__, 0)
        self.decoded_tokens = self._proposed = self._accepted = self._remasked = self._forced = 0
        self._queue_s = 0.0
        self._prefill_s: float | None = None
        self._first_block_s: float | None = None
        self._clock: Callable[[], float]
        self._version: int
        self._mrp_version: int | None

    def begin(self, clock: Callable[[], float], version: int, mrp_version: int | None = None) -> None:
        """The request has left the queue. The weights that answer have these versions, MRP the second."""
        self._clock, self._version, self._mrp_version = clock, version, mrp_version
        self._queue_s = self._age()

    def count(self, kinds: Iterable[ForwardKind]) -> None:
        for kind in kinds:
            self._forwards[kind] += 1
            if kind == "prefill":
                self._prefill_s = self._age()

    def add_progress(self, index: int, first: int, steps: Sequence[Step]) -> None:
        self.progress.append(BlockProgress(self._request.request_id, index, first, tuple(steps), self._age()))

    def add_event(
        self, index: int, tokens: tuple[int, ...], steps: Sequence[Step] = (), end: EventEnd = _GOES_ON
    ) -> None:
        """Adds the event of block `index`: its tokens, its steps, and how the request ends with it."""
        for kind, revealed, remasked, drafted, accepted, *_ in steps:
            if drafted:
                self._proposed += len(drafted)
                self._accepted += accepted
            if remasked:
                self._remasked += len(remasked)
            if kind == "forced":
                self._forced += len(revealed)
        age = self._age()
        if self._first_block_s is None:
            self._first_block_s = age
        stats = Stats(
            forwards=ForwardCounts(**self._forwards),
            decoded_tokens=self.decoded_tokens,
            drafts_proposed=self._proposed,
            drafts_accepted=self._accepted,
            remasked=self._remasked,
            forced_tokens=self._forced,
            mrp_steps=self._mrp_steps,
            cached_tokens=self.cached_tokens,
            queue_s=self._queue_s,
            prefill_s=self._prefill_s,
            first_block_s=self._first_block_s,
            total_s=age,
            weight_version=self._version,
            mrp_version=self._mrp_version,
        )
        event = BlockEvent(
            request_id=self._request.request_id,
            index=index,
            token_ids=tokens,
            stats=stats,
            finish_reason=end.reason,
            steps=tuple(steps) if self._request.keep_steps else (),
            error=end.error,
            constraint_met=end.constraint_met,
            position_logprobs=end.position_logprobs,
            version=self._version,
        )
        self.events.append((event, steps))

    def _age(self) -> float:
        return self._clock() - self._submitted
