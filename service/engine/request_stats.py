"""The statistics of a running request, its events and its progress.

Counts change with every step. The frozen statistics of an event are made only when a block or the request ends.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from service.decode.block import Step
from service.engine.request import BlockEvent, BlockProgress, ForwardCounts, ForwardKind, GenerationRequest, Stats


class RequestStats:
    """The statistics and events of one request. `submitted`: the time of its submission (engine's clock, seconds).

    `mrp_steps`: the MRP forwards for its drafts, None without drafts. `events`, `progress`: those not collected yet.
    `num_preemptions`: how often the request has lost its pages.
    """

    __slots__ = (
        "_accepted", "_clock", "_first_block_s", "_forced", "_forwards", "_mrp_steps", "_mrp_version",
        "_prefill_s", "_proposed", "_queue_s", "_remasked", "_request", "_stores_prompt", "_submitted", "_version",
        "cached_tokens", "decoded_tokens", "events", "num_preemptions", "progress",
    )  # fmt: skip

    def __init__(self, request: GenerationRequest, submitted: float, cached_tokens: int, mrp_steps: int | None) -> None:
        self._request, self._submitted = request, submitted
        self.cached_tokens, self._mrp_steps = cached_tokens, mrp_steps
        self.events: list[tuple[BlockEvent, Sequence[Step]]] = []
        self.progress: list[BlockProgress] = []
        self._forwards = defaultdict[str, int](int)
        self.decoded_tokens = self._proposed = self._accepted = self._remasked = self._forced = 0
        self.num_preemptions, self._stores_prompt = 0, True
        self._queue_s = 0.0
        self._prefill_s: float | None = None
        self._first_block_s: float | None = None

    def begin(self, clock: Callable[[], float], version: int, mrp_version: int | None = None) -> None:
        """The request has left the queue. The weights that answer have these versions, MRP the second."""
        self._clock, self._version, self._mrp_version = clock, version, mrp_version
        self._queue_s = self._age()

    def count(self, kinds: tuple[ForwardKind, ...]) -> None:
        for kind in kinds:
            self._forwards[kind] += 1
            if kind == "prefill" and self._stores_prompt:
                self._prefill_s = self._age()

    def count_cached(self, tokens: int) -> None:
        """Another request has stored these tokens of the prompt first. After a preemption it may be any tokens."""
        if not self.num_preemptions:
            self.cached_tokens += tokens

    def preempt(self, *, in_prompt: bool) -> None:
        """The request has lost its pages. `in_prompt`: before its prompt was stored."""
        self.num_preemptions += 1
        self._stores_prompt &= in_prompt

    def add_progress(self, index: int, first: int, steps: Sequence[Step]) -> None:
        self.progress.append(BlockProgress(self._request.request_id, index, first, tuple(steps), self._age()))

    def add_event(self, event: BlockEvent, steps: Sequence[Step] = ()) -> None:
        """Adds the event of a block with these steps. It gets its statistics, steps and version here."""
        for step in steps:
            if step.drafted:
                self._proposed += len(step.drafted)
                self._accepted += step.accepted
            if step.remasked:
                self._remasked += len(step.remasked)
            if step.kind == "forced":
                self._forced += len(step.revealed)
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
            num_preemptions=self.num_preemptions,
            queue_s=self._queue_s,
            prefill_s=self._prefill_s,
            first_block_s=self._first_block_s,
            total_s=age,
            weight_version=self._version,
            mrp_version=self._mrp_version,
            mode=self._request.mode if self._request.plans else None,
        )
        event_steps = tuple(steps) if self._request.keep_steps else ()
        self.events.append((replace(event, stats=stats, steps=event_steps, version=self._version), steps))

    def _age(self) -> float:
        return self._clock() - self._submitted
