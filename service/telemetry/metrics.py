"""The table of all metrics, the registry of one process, and `Sums` for a process without a registry."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from types import SimpleNamespace
from typing import Any, Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import Metric as Exposed

from service.messages.replica_status import Family

PREFIX = "mrp_"

#: the process that counts a metric
Process = Literal["replica", "ingress", "trainer"]

_SECONDS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0),
    *(7.5, 10.0, 15.0, 20.0, 30.0, 60.0, 120.0, 300.0),
)
_STEP_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
_PER_FORWARD = (0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0)
_ROWS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0)


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. `name`: the exposed name without the prefix `mrp_`, or with another server's, such as `vllm:`.

    `where`: the process that counts it.
    """

    name: str
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    where: Process = "replica"

    @property
    def exposed(self) -> str:
        """The name on the page."""
        return self.name if ":" in self.name else PREFIX + self.name

    @property
    def kind(self) -> Literal["gauge", "counter", "histogram"]:
        """The kind. Only histograms have buckets, and only counters end with `_total`, as Prometheus wants it."""
        if self.buckets:
            return "histogram"
        return "counter" if self.name.endswith("_total") else "gauge"


METRICS: tuple[Metric, ...] = (
    Metric("num_requests_running", "Requests being decoded"),
    Metric("num_requests_waiting", "Requests waiting in an engine or (replica=queue) for a slot"),
    Metric("kv_cache_usage_perc", "Share of the KV pages in use, 0 to 1"),
    Metric("weights_version", "Version of the weights that answer; 0: those of the start"),
    Metric("paused", "1 while generation is paused by /admin/pause"),
    Metric("sleep_level", "0: awake; 1: the KV cache has no memory; 2: the weights have none, either"),
    Metric("request_success_total", "Requests that a replica ended, including aborts", ("mode", "finished_reason")),
    Metric("corrupted_requests_total", "Requests that ended since the model's outputs were not finite"),
    Metric("request_rejected_total", "Requests answered with an error", ("reason",), where="ingress"),
    Metric("request_failovers_total", "Further attempts, by reason", ("reason",), where="ingress"),
    Metric("request_routed_total", "Requests by how their replica was chosen", ("by",), where="ingress"),
    Metric(
        "replicas_linked",
        "Replicas that this ingress has a connection to; requests wait while there are none",
        where="ingress",
    ),
    Metric("replicas_ready", "Replicas that can answer a request of this ingress now, as in /health", where="ingress"),
    Metric("request_quality_total", "Answers to requests with a `quality`, by the plan that ran", ("quality", "plan")),
    Metric("queue_blocks_left", "Blocks left to decode for all requests, estimated", where="ingress"),
    Metric("queue_blocks_per_second", "Blocks a second while all slots are taken", where="ingress"),
    Metric("replicas_wanted", "Replicas needed for the current requests; sum over ingresses", where="ingress"),
    Metric("replicas_least", "Setting num_replicas", where="ingress"),
    Metric("replicas_most", "Setting max_replicas, or num_replicas if it is not set", where="ingress"),
    Metric("prompt_tokens_total", "Prompt tokens, cached ones included"),
    Metric("prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache"),
    Metric("prefix_cache_hits_total", "Prompt tokens found in the prefix cache"),
    Metric("num_preemptions_total", "How often a request lost its KV pages to others"),
    Metric("preempted_tokens_recomputed_total", "Tokens stored once more, of requests that had lost their KV pages"),
    Metric("generation_tokens_total", "Tokens decoded", ("mode",)),
    Metric("forwards_total", "Forwards in which a request had a row, over all requests", ("kind",)),
    Metric("eager_forwards_total", "Forwards on CUDA without a CUDA graph; 0 where all are captured"),
    Metric("tokens_revealed_total", "Positions revealed, by the source of the token", ("mode", "source")),
    Metric("tokens_remasked_total", "Revealed positions masked again or edited"),
    Metric("spec_decode_num_draft_tokens_total", "Drafts verified"),
    Metric("spec_decode_num_accepted_tokens_total", "Drafts accepted"),
    Metric("spec_decode_num_accepted_tokens_per_pos_total", "Drafts accepted, by position in the draft", ("position",)),
    Metric(
        "vllm:diffusion_num_denoising_steps_total",
        "Alias: denoise and verify forwards of requests, and one for each finished block",
    ),
    Metric("vllm:diffusion_num_canvas_positions_total", "Alias: these steps, times the block size"),
    Metric("vllm:diffusion_num_committed_tokens_total", "Alias: tokens decoded"),
    Metric("tokens_per_forward", "Tokens per denoise or verify forward, per request", ("mode",), _PER_FORWARD),
    Metric("time_to_first_block_seconds", "Arrival to first block", ("mode",), _SECONDS),
    Metric("inter_block_latency_seconds", "One block to the next", ("mode",), _SECONDS),
    Metric("e2e_request_latency_seconds", "Arrival to end, without aborts", ("mode",), _SECONDS),
    Metric("request_queue_time_seconds", "Arrival to the start by an engine, without aborts", (), _SECONDS),
    Metric("engine_step_seconds", "One step of the engine", (), _STEP_SECONDS),
    Metric("rows_per_forward", "Rows (blocks) in a backbone forward", (), _ROWS),
    Metric("online_requests_total", "Finished requests that MRP's trainer has read", where="trainer"),
    Metric("online_updates_total", "Updates of the trained MRP", where="trainer"),
    Metric("online_versions_total", "Versions that were better, by what became of them", ("outcome",), where="trainer"),
    Metric(
        "online_served_accepted_per_forward",
        "Drafts accepted a forward on recent requests kept for it, by the served MRP, at the last judgement",
        where="trainer",
    ),
    Metric("online_trained_accepted_per_forward", "The same, by the trained MRP", where="trainer"),
    Metric(
        "online_accepted_tokens_total",
        "Drafts accepted of the requests read whose drafts MRP refined, for its newest versions",
        ("version",),
        where="trainer",
    ),
    Metric(
        "online_forwards_total",
        "Denoise and verify forwards of these requests",
        ("version",),
        where="trainer",
    ),
)


_KINDS: Mapping[str, Any] = {"gauge": Gauge, "counter": Counter, "histogram": Histogram}

#: a metric's name in the table, and its labels
MetricKey = tuple[str, tuple[tuple[str, str], ...]]
#: amounts of counters, and values of histograms
SumsData = tuple[Mapping[MetricKey, float], Mapping[MetricKey, Sequence[float]]]


class Sums:
    """Counts and values as plain data, for a process without a registry. One thread uses it."""

    def __init__(self) -> None:
        self._amounts: dict[MetricKey, float] = {}
        self._values: dict[MetricKey, list[float]] = {}

    def add(self, name: str, amount: float = 1.0, **labels: str) -> None:
        key = name, tuple(labels.items())
        self._amounts[key] = self._amounts.get(key, 0.0) + amount

    def observe(self, name: str, value: float, **labels: str) -> None:
        self._values.setdefault((name, tuple(labels.items())), []).append(value)

    def drain(self) -> SumsData:
        drained = self._amounts, self._values
        self._amounts, self._values = {}, {}
        return drained


class Registry:
    """The metrics of one process. KeyError for a name that is not in the table."""

    def __init__(self, where: Process) -> None:
        self._registry = CollectorRegistry()
        self._metrics: dict[str, Any] = {}
        for metric in METRICS:
            if metric.where == where:
                kind, options = _KINDS[metric.kind], {"buckets": metric.buckets} if metric.buckets else {}
                self._metrics[metric.name] = kind(
                    metric.exposed, metric.help, metric.labels, registry=self._registry, **options
                )

    def add(self, name: str, amount: float = 1.0, **labels: str) -> None:
        self._labelled(name, labels).inc(amount)

    def start(self, name: str, **values: Iterable[str]) -> None:
        """Shows a counter as 0 for every combination of these values of its labels.

        Without this, Prometheus sees no increase at a first event, and a sum with a counter without events is empty.
        """
        for combination in product(*values.values()):
            self.add(name, 0, **dict(zip(values, combination, strict=True)))

    def set(self, name: str, value: float) -> None:
        self._metrics[name].set(value)

    def observe(self, name: str, value: float, **labels: str) -> None:
        self._labelled(name, labels).observe(value)

    def remove(self, name: str, **labels: str) -> None:
        """Ends a series."""
        self._metrics[name].remove(*labels.values())

    def _labelled(self, name: str, labels: Mapping[str, str]) -> Any:
        return self._metrics[name].labels(**labels) if labels else self._metrics[name]

    def add_sums(self, sums: SumsData) -> None:
        amounts, observations = sums
        for (name, labels), amount in amounts.items():
            self.add(name, amount, **dict(labels))
        for (name, labels), values in observations.items():
            for value in values:
                self.observe(name, value, **dict(labels))

    def families(self, replica: str) -> tuple[Family, ...]:
        """All metrics with their current values and the label `replica`."""
        return tuple(_family(metric, replica) for metric in self._registry.collect())


def _family(metric: Exposed, replica: str) -> Family:
    """The metric as text, without the creation times of its samples."""
    labelled = Exposed(metric.name, metric.documentation, metric.type)
    for sample in metric.samples:
        if not sample.name.endswith("_created"):
            labelled.add_sample(sample.name, {**sample.labels, "replica": replica}, sample.value)
    single: Any = SimpleNamespace(collect=lambda: [labelled])  # a collector of one metric
    help_line, type_line, *samples = generate_latest(single).decode().splitlines(keepends=True)
    return Family(metric.name, help_line + type_line, "".join(samples))
