"""Serve's router over `affinity.py`: requests to where the beginning of their prompt is cached.

Ray's own `PrefixCacheAffinityRouter` keeps one tree of texts in an actor, which is asked and waited for with every
request, has no bound on load by default, and wants OpenAI's shapes as arguments. Here every ingress has a small table
of hashes in its own process, knows `Work`, and agrees with the other ingresses on new prompts by hashing.

Requests get the replica that was chosen for them: Serve's default router hands a replica to whichever request
waits longest, and its routers without that order lose all but one of the calls that a client's request makes
at the same time, since they tell them apart by the client's request. Serve pickles this module by value: it holds
nothing but the class. It builds on parts of Serve that are not public; `support.py` looks whether they are as here.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ray.serve._private.request_router.common import RequestRoutingContext
from ray.serve._private.request_router.pow_2_router import PowerOfTwoChoicesRequestRouter
from ray.serve.request_router import PendingRequest, ReplicaID, RunningReplica

from service.rayserve.report import report
from service.routing.affinity import Affinity, Choice
from service.routing.keys import PrefixKeys, prefix_keys
from service.routing.loads import Loads
from service.wire import Work

if TYPE_CHECKING:
    from ray.serve._private.common import RequestMetadata
    from ray.serve._private.replica_result import ReplicaResult


@dataclass
class _Routing(RequestRoutingContext):
    """What is kept of a request while it looks for a replica."""

    keys: PrefixKeys = field(default_factory=PrefixKeys)
    choice: Choice | None = None


class PrefixRouter(PowerOfTwoChoicesRequestRouter):
    """One for every process that asks. Serve makes it and calls `initialize_state` with the deployment's kwargs."""

    def initialize_state(self, **kwargs: Any) -> None:
        """`slack`: requests above the mean that a replica may always have."""
        self._affinity = Affinity(kwargs["slack"])
        self._loads = Loads(time.monotonic)
        self._by_name: dict[str, RunningReplica] = {}

    # --- loads ---------------------------------------------------------------------------------------

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """The replicas there are from now on."""
        self._by_name = {replica.replica_id.unique_id: replica for replica in replicas}
        self._loads.are(self._by_name)
        super().update_replicas(replicas)

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        """A replica that no request shall go to any more."""
        self._by_name.pop(replica_id.unique_id, None)
        self._loads.lost(replica_id.unique_id)
        super().on_replica_actor_died(replica_id)

    def on_new_queue_len_info(self, replica_id: ReplicaID, num_ongoing_requests: int) -> None:
        """A replica that was asked to take a request says how many it has, of other ingresses too."""
        self._loads.said(replica_id.unique_id, num_ongoing_requests)
        super().on_new_queue_len_info(replica_id, num_ongoing_requests)

    def decrement_queue_len_cache(self, replica_id: ReplicaID) -> None:
        """A request has ended."""
        self._loads.ended(replica_id.unique_id)
        super().decrement_queue_len_cache(replica_id)

    # --- routing -----------------------------------------------------------------------------------

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Whom `affinity.py` chooses first, then what the default router would try."""
        by_load = await super().choose_replicas(candidate_replicas, pending_request)
        work = pending_request.args[0] if pending_request is not None and pending_request.args else None
        # A further attempt asks no one in particular: who lost the last one may look idle and still be known.
        if pending_request is None or not isinstance(work, Work) or work.attempt or not self._by_name:
            return by_load
        routing = pending_request.routing_context
        if not isinstance(routing, _Routing):
            routing = pending_request.routing_context = _Routing(should_backoff=True, keys=prefix_keys(work))
        routing.choice = self._affinity.choose(routing.keys, self._loads.now())
        return [*([self._by_name[name]] for name in routing.choice.replicas), *by_load]

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: ReplicaResult) -> None:
        """A replica has taken the request: it has the prefix from now on."""
        super().on_request_routed(pending_request, replica_id, result)
        routing, name = pending_request.routing_context, replica_id.unique_id
        self._loads.took(name)
        if not isinstance(routing, _Routing) or routing.choice is None:
            return
        self._affinity.learn(routing.keys, name)
        missed = routing.choice.how == "prefix" and name not in routing.choice.replicas
        report("overloaded" if missed else routing.choice.how)

    def _fulfill_next_pending_request(
        self, replica: RunningReplica, request_metadata: RequestMetadata | None = None
    ) -> None:
        """Gives a replica to the request that it was chosen for. Every call has metadata of its own."""
        for index, pending in enumerate(self._pending_requests_to_fulfill):
            if pending.metadata is request_metadata and not pending.future.done():
                del self._pending_requests_to_fulfill[index]
                self._record_queue_wait_time(pending)
                self._remove_pending_request_from_indices(pending)
                pending.future.set_result(replica)
                self._loads.promised(replica.replica_id.unique_id)
                return
