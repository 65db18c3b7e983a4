"""A Serve router over `routing/affinity.py`: a request goes to the replica that has its prompt's prefix cached.

Ray's own `PrefixCacheAffinityRouter` keeps one tree of texts in an actor, and every request waits for that actor. It
has no bound on load by default and expects arguments in OpenAI's shapes. Here every ingress has a small table of
hashes in its own process. Hashing makes all ingresses choose the same replica for a new prompt.

A request gets the replica that was chosen for it. Serve's default router gives a replica to the request that waits
longest. Serve's routers without that order identify a call by its client's request. They lose all but one of the
calls that one client's request makes at the same time.

Serve pickles this module by value, so the module holds only the class. The class uses private parts of Serve;
`support.py` checks that they are as expected.
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
    """The state of a request while a replica is chosen for it."""

    keys: PrefixKeys = field(default_factory=PrefixKeys)
    choice: Choice | None = None


class PrefixRouter(PowerOfTwoChoicesRequestRouter):
    """The router of one process. Serve makes it and calls `initialize_state` with the deployment's kwargs."""

    def initialize_state(self, **kwargs: Any) -> None:
        """`slack`: requests above the mean that a replica may always have."""
        self._affinity = Affinity(kwargs["slack"])
        self._loads = Loads(time.monotonic)
        self._by_name: dict[str, RunningReplica] = {}

    # --- loads ---------------------------------------------------------------------------------------

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Sets the replicas."""
        self._by_name = {replica.replica_id.unique_id: replica for replica in replicas}
        self._loads.set_replicas(self._by_name)
        super().update_replicas(replicas)

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        """Removes a dead replica."""
        self._by_name.pop(replica_id.unique_id, None)
        self._loads.remove(replica_id.unique_id)
        super().on_replica_actor_died(replica_id)

    def on_new_queue_len_info(self, replica_id: ReplicaID, num_ongoing_requests: int) -> None:
        """Stores the number of requests that a replica reports, those of other ingresses included."""
        self._loads.reported(replica_id.unique_id, num_ongoing_requests)
        super().on_new_queue_len_info(replica_id, num_ongoing_requests)

    def decrement_queue_len_cache(self, replica_id: ReplicaID) -> None:
        """Counts the end of a request."""
        self._loads.ended(replica_id.unique_id)
        super().decrement_queue_len_cache(replica_id)

    # --- routing -----------------------------------------------------------------------------------

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """The replicas that `affinity.py` chooses, then those that the default router would try."""
        by_load = await super().choose_replicas(candidate_replicas, pending_request)
        work = pending_request.args[0] if pending_request is not None and pending_request.args else None
        # A further attempt goes by load: the replica that lost the last attempt may look idle and hold the prefix.
        if pending_request is None or not isinstance(work, Work) or work.attempt or not self._by_name:
            return by_load
        routing = pending_request.routing_context
        if not isinstance(routing, _Routing):
            routing = pending_request.routing_context = _Routing(should_backoff=True, keys=prefix_keys(work))
        routing.choice = self._affinity.choose(routing.keys, self._loads.now())
        return [*([self._by_name[name]] for name in routing.choice.replicas), *by_load]

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: ReplicaResult) -> None:
        """Notes the replica that has taken the request: it has the prefix from now on."""
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
        """Gives a replica to the request that it was chosen for. Every call has its own metadata object."""
        for index, pending in enumerate(self._pending_requests_to_fulfill):
            if pending.metadata is request_metadata and not pending.future.done():
                del self._pending_requests_to_fulfill[index]
                self._record_queue_wait_time(pending)
                self._remove_pending_request_from_indices(pending)
                pending.future.set_result(replica)
                self._loads.chosen(replica.replica_id.unique_id)
                return
