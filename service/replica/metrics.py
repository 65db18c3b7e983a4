"""The metrics of a replica: the ends of requests, and the sums of its engine's process."""

from typing import get_args

from service.decode.mode import ScoreMode
from service.decode.modes import MODES
from service.engine.observer import EngineState
from service.engine.request import FinishReason, ForwardKind, Stats
from service.engine_process.metrics import SOURCES, EngineMetrics
from service.messages.replica_status import Family
from service.messages.wire import Weights
from service.telemetry.metrics import Registry

#: the most ended requests that wait to be counted
_UNCOUNTED = 256
#: the modes of all requests
_MODES = (*MODES, ScoreMode.name)


class ReplicaMetrics(EngineMetrics):
    """The metrics of a replica in a registry of its own. In tests, it observes an engine of the same process, too."""

    def __init__(self) -> None:
        self._registry = Registry("replica")
        reasons, kinds = get_args(FinishReason), get_args(ForwardKind)
        self._registry.start("request_success_total", mode=_MODES, finished_reason=reasons)
        self._registry.start("generation_tokens_total", mode=_MODES)
        self._registry.start("forwards_total", kind=kinds)
        self._registry.start("tokens_revealed_total", mode=_MODES, source=SOURCES)
        self.add_sums = self._registry.add_sums
        self._ended: list[tuple[str, FinishReason, Stats]] = []
        super().__init__(self._registry)

    def finished(self, mode: str, reason: FinishReason, stats: Stats) -> None:
        """Notes the end of a request. It is counted when metrics are read, since its answer need not wait for it."""
        self._ended.append((mode, reason, stats))
        if len(self._ended) >= _UNCOUNTED:
            self._count_ended()

    def count_quality(self, quality: str, plan: str) -> None:
        """An answer of a preset has ended, which this plan decoded."""
        self._registry.add("request_quality_total", quality=quality, plan=plan)

    def _count_ended(self) -> None:
        ended, self._ended = self._ended, []
        for request in ended:
            self._count(*request)

    def _count(self, mode: str, reason: FinishReason, stats: Stats) -> None:
        """Counts the end of a request, by times from its arrival at the ingress, unless it is aborted."""
        self._registry.add("request_success_total", mode=mode, finished_reason=reason)
        if reason == "abort":
            return
        self._registry.observe("request_queue_time_seconds", stats.queue_s)
        self._registry.observe("e2e_request_latency_seconds", stats.total_s, mode=mode)
        if stats.decoded_tokens:
            self._registry.observe("tokens_per_forward", stats.tokens_per_forward, mode=mode)

    def families(self, state: EngineState, weights: Weights, replica: str) -> tuple[Family, ...]:
        self._count_ended()
        self._registry.set("weights_version", weights.version)
        self._registry.set("num_requests_running", state.num_running)
        self._registry.set("num_requests_waiting", state.num_waiting)
        self._registry.set("kv_cache_usage_perc", state.kv_usage)
        self._registry.set("paused", state.paused)
        self._registry.set("sleep_level", state.sleep_level)
        return self._registry.families(replica)
