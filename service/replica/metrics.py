"""The metrics of a replica: the engine's steps and events, and the ends of requests.

`EngineMetrics` counts in the engine's process, into `Sums`. The replica adds these sums to its registry.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from service.decode.block import Step
from service.engine.observer import EngineState, StepReport
from service.engine.request import BlockEvent, FinishReason, GenerationRequest, Stats
from service.messages.replica_status import Family
from service.messages.wire import Weights
from service.telemetry.metrics import Registry, Sums

#: the most ended requests that wait to be counted
_UNCOUNTED = 256


class EngineMetrics:
    """Implements the engine's `Observer`: counts into `sink`."""

    def __init__(self, sink: Registry | Sums) -> None:
        self._sink = sink
        self._last_block: dict[str, float] = {}

    def on_step(self, report: StepReport) -> None:
        self._sink.observe("engine_step_seconds", report.seconds)
        if report.rows:
            self._sink.observe("rows_per_forward", report.rows)
        for kind, count in report.forwards.items():
            self._sink.add("forwards_total", count, kind=kind)
        if report.eager_forwards:
            self._sink.add("eager_forwards_total", report.eager_forwards)
        if report.tokens_looked_up:
            self._sink.add("prefix_cache_queries_total", report.tokens_looked_up)
            self._sink.add("prefix_cache_hits_total", report.tokens_cached)

    def on_event(self, request: GenerationRequest, event: BlockEvent, steps: Sequence[Step]) -> None:
        mode = request.mode.name
        previous = self._last_block.pop(request.request_id, None)
        if event.finish_reason is None:
            self._last_block[request.request_id] = event.stats.total_s
        begins = previous is None and not request.num_continued  # the request's first block on any replica
        if begins and event.stats.forwards.denoise + event.stats.forwards.verify:
            self._sink.add("prompt_tokens_total", len(request.prompt_token_ids))
        if event.token_ids:
            self._sink.add("generation_tokens_total", len(event.token_ids), mode=mode)
        if event.token_ids and begins:
            arrived_to_block = request.waited_s + event.stats.total_s
            self._sink.observe("time_to_first_block_seconds", arrived_to_block, mode=mode)
        elif event.token_ids and previous is not None:
            self._sink.observe("inter_block_latency_seconds", event.stats.total_s - previous, mode=mode)
        self._steps(mode, steps)

    def _steps(self, mode: str, steps: Sequence[Step]) -> None:
        """Sums first: to add to a metric takes longer than to look at a step."""
        revealed: Counter[str] = Counter()
        accepted: Counter[int] = Counter()
        revoked = drafted = 0
        for step in steps:
            proposed = step.proposed
            revealed["mrp" if step.kind == "mrp" else "draft"] += proposed
            revealed["grammar" if step.kind == "forced" else "backbone"] += len(step.revealed) - proposed
            revoked += len(step.remasked)
            drafted += len(step.drafted)
            accepted[step.accepted] += 1
        for source, count in revealed.items():
            self._sink.add("tokens_revealed_total", count, mode=mode, source=source)
        self._sink.add("tokens_remasked_total", revoked)
        self._sink.add("spec_decode_num_draft_tokens_total", drafted)
        self._sink.add("spec_decode_num_accepted_tokens_total", sum(n * count for n, count in accepted.items()))
        for position in range(max(accepted, default=0)):
            deep = sum(count for length, count in accepted.items() if length > position)
            self._sink.add("spec_decode_num_accepted_tokens_per_pos_total", deep, position=str(position))


class ReplicaMetrics(EngineMetrics):
    """The metrics of a replica in a registry of its own. In tests, it observes an engine of the same process, too."""

    def __init__(self) -> None:
        self._registry = Registry("replica")
        self.add_sums = self._registry.add_sums
        self._ended: list[tuple[str, FinishReason, Stats]] = []
        super().__init__(self._registry)

    def finished(self, mode: str, reason: FinishReason, stats: Stats) -> None:
        """Notes the end of a request. It is counted when metrics are read, since its answer need not wait for it."""
        self._ended.append((mode, reason, stats))
        if len(self._ended) >= _UNCOUNTED:
            self._count_ended()

    def _count_ended(self) -> None:
        ended, self._ended = self._ended, []
        for request in ended:
            self._count(*request)

    def _count(self, mode: str, reason: FinishReason, stats: Stats) -> None:
        """Counts the end of a request. Its times count from the arrival at the ingress.

        The times of an aborted request are left out: they end at its last block and would be too short.
        """
        self._registry.add("request_success_total", mode=mode, finished_reason=reason)
        if reason == "abort":
            return
        self._registry.observe("request_queue_time_seconds", stats.queue_s)
        self._registry.observe("e2e_request_latency_seconds", stats.total_s, mode=mode)
        if stats.decoded_tokens:
            self._registry.observe("tokens_per_forward", stats.tokens_per_forward, mode=mode)

    def families(self, state: EngineState, weights: Weights, replica: str) -> tuple[Family, ...]:
        """The current metrics of the replica named `replica`, whose engine is in this state."""
        self._count_ended()
        self._registry.set("weights_version", weights.version)
        self._registry.set("num_requests_running", state.num_running)
        self._registry.set("num_requests_waiting", state.num_waiting)
        self._registry.set("kv_cache_usage_perc", state.kv_usage)
        self._registry.set("paused", state.paused)
        self._registry.set("sleep_level", state.sleep_level)
        return self._registry.families(replica)
