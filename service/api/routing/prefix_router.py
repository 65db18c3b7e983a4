"""Serve's router over `affinity.py`: requests to where the beginning of their prompt is cached.

Ray's own `PrefixCacheAffinityRouter` keeps one tree of texts in an actor, which is asked and waited for with every
request, has no bound on load by default, and wants OpenAI's shapes as arguments. Here every ingress has a small table
of hashes in its own process, knows `Work`, and agrees with the other ingresses on new prompts by hashing.

Requests get the replica that was chosen for them: Serve's default router hands a replica to whichever request
waits longest, and its routers without that order lose all but one of the calls that a client's request makes
at the same time, since they tell them apart by the client's request. Serve pickles this module by value: it holds
nothing but the class.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ray.serve._private.common import ReplicaID, RequestMetadata
from ray.serve._private.replica_result import ReplicaResult
from ray.serve._private.request_router.common import PendingRequest, RequestRoutingContext
from ray.serve._private.request_router.pow_2_router import PowerOfTwoChoicesRequestRouter
from ray.serve._private.request_router.replica_wrapper import RunningReplica

from service.api.routing.affinity import Affinity, Choice
from service.api.routing.keys import PrefixKeys, prefix_keys
from service.api.routing.report import report
from service.api.wire import Work


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
        self._by_name: dict[str, RunningReplica] = {}
        self._loads: dict[str, int] = {}
        self._promised: dict[str, int] = {}

    # --- loads: as Serve's cache has them, but not forgotten after 10 s, and counted from the choice on --

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """The replicas there are from now on."""
        self._by_name = {replica.replica_id.unique_id: replica for replica in replicas}
        self._loads = {name: self._loads.get(name, 0) for name in self._by_name}
        self._promised = {name: self._promised.get(name, 0) for name in self._by_name}
        super().update_replicas(replicas)

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        """A replica that no request shall go to any more."""
        self._by_name.pop(replica_id.unique_id, None)
        self._loads.pop(replica_id.unique_id, None)
        super().on_replica_actor_died(replica_id)

    def on_new_queue_len_info(self, replica_id: ReplicaID, num_ongoing_requests: int) -> None:
        """A replica has said how many requests it has, of other ingresses too."""
        if (name := replica_id.unique_id) in self._loads:
            self._loads[name] = num_ongoing_requests + self._promised[name]
        super().on_new_queue_len_info(replica_id, num_ongoing_requests)

    def on_send_request(self, replica_id: ReplicaID) -> None:
        """A request is on its way, or a call to all replicas, which was not promised."""
        if self._promised.get(replica_id.unique_id):
            self._promised[replica_id.unique_id] -= 1
        else:
            self._count(replica_id, 1)
        super().on_send_request(replica_id)

    def decrement_queue_len_cache(self, replica_id: ReplicaID) -> None:
        """A request has ended."""
        self._count(replica_id, -1)
        super().decrement_queue_len_cache(replica_id)

    def _count(self, replica_id: ReplicaID, change: int) -> None:
        if (name := replica_id.unique_id) in self._loads:
            self._loads[name] = max(0, self._loads[name] + change)

    # --- routing -----------------------------------------------------------------------------------

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Whom `affinity.py` chooses first, then what the default router would try."""
        by_load = await super().choose_replicas(candidate_replicas, pending_request)
        work = pending_request.args[0] if pending_request is not None and pending_request.args else None
        # A further attempt asks no one in particular: who lost the last one may look idle and still be known.
        if pending_request is None or not isinstance(work, Work) or work.attempt or not self._loads:
            return by_load
        routing = pending_request.routing_context
        if not isinstance(routing, _Routing):
            routing = pending_request.routing_context = _Routing(should_backoff=True, keys=prefix_keys(work))
        routing.choice = self._affinity.choose(routing.keys, self._loads)
        return [*([self._by_name[name]] for name in routing.choice.replicas), *by_load]

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: ReplicaResult) -> None:
        """A replica has taken the request: it has the prefix from now on."""
        super().on_request_routed(pending_request, replica_id, result)
        routing, name = pending_request.routing_context, replica_id.unique_id
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
                self._promise(replica.replica_id)
                return

    def _promise(self, replica_id: ReplicaID) -> None:
        """Requests that come at the same time are to see each other: none of them is sent yet."""
        if (name := replica_id.unique_id) in self._promised:
            self._promised[name] += 1
            self._loads[name] += 1
