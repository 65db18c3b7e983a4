"""Joins the metrics that every process has written to one page of Prometheus text."""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client import CONTENT_TYPE_LATEST

from service.wire import Snapshot

CONTENT_TYPE = CONTENT_TYPE_LATEST

#: value of the label `replica` for requests that no replica has yet
QUEUE = "queue"
_WAITING = "mrp_num_requests_waiting"


def expose(ingresses: Sequence[Snapshot], replicas: Sequence[Snapshot]) -> bytes:
    """One page of metrics.

    A request that an ingress has and no replica has is waiting: for a slot, or for a link to a replica.
    """
    queued = sum(one.in_flight for one in ingresses) - sum(one.in_flight for one in replicas)
    families: dict[str, list[str]] = {}
    for snapshot in (*replicas, *ingresses):
        for family in snapshot.families:
            families.setdefault(family.name, [family.head]).append(family.samples)
    if _WAITING in families:
        families[_WAITING].append(f'{_WAITING}{{replica="{QUEUE}"}} {float(max(0, queued))}\n')
    return "".join(part for parts in families.values() for part in parts).encode()
