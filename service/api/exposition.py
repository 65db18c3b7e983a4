"""The snapshots of all processes as one page of Prometheus text, told apart by the label `replica`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from service.api.wire import Snapshot

CONTENT_TYPE = CONTENT_TYPE_LATEST

#: what stands for a replica on requests that no replica has yet
QUEUE = "queue"
_WAITING = "mrp_num_requests_waiting"


def expose(ingresses: Sequence[Snapshot], replicas: Sequence[Snapshot]) -> bytes:
    """One page. What the ingresses have in hand and no replica has waits for a place, or in Serve's queue."""
    queued = sum(one.in_flight for one in ingresses) - sum(one.in_flight for one in replicas)
    registry = CollectorRegistry()
    registry.register(_Merged([*replicas, *ingresses], max(0, queued)))
    return generate_latest(registry)


class _Merged(Collector):
    def __init__(self, snapshots: Iterable[Snapshot], queued: int) -> None:
        self._snapshots, self._queued = snapshots, queued

    def collect(self) -> Iterator[Metric]:
        merged: dict[str, Metric] = {}
        for snapshot in self._snapshots:
            for family in snapshot.families:
                metric = merged.setdefault(family.name, Metric(family.name, family.documentation, family.kind))
                for name, labels, value in family.samples:
                    metric.add_sample(name, {**labels, "replica": snapshot.replica}, value)
        if _WAITING in merged:
            merged[_WAITING].add_sample(_WAITING, {"replica": QUEUE}, self._queued)
        yield from merged.values()
