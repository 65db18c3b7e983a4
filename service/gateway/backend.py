"""The interface through which the routes use the replicas. `rayserve/ray_backend.py` implements it."""

from dataclasses import replace
from typing import Protocol

from service.errors import MrpServeError, NotReady
from service.messages.replica_status import ControlCommand, ControlResult, ModelCard, Snapshot, Status
from service.messages.wire import Failure, ReplicaRequest, ReplicaStream, Weights


class Backend(Protocol):
    """The replicas that generate. Every method may raise an MrpServeError."""

    async def count(self, request: ReplicaRequest) -> int | Failure: ...

    def stream(self, request: ReplicaRequest) -> ReplicaStream:
        """The answer block by block. Closing the stream aborts the request."""

    def note_error(self, error: MrpServeError) -> None:
        """Hears of an error that ended an attempt at an answer."""

    async def statuses(self) -> list[Status]:
        """One status for every replica that responds. NotReady with the reason if none does, ScaledToZero at zero."""

    async def control(self, command: ControlCommand) -> list[ControlResult]:
        """The result of a command at every replica that responds. Raises `command.failed` if one takes too long."""

    async def announce(self, weights: Weights) -> None:
        """Tells all ingresses that older weights may no longer answer."""

    async def snapshots(self, ingress: Snapshot) -> tuple[list[Snapshot], list[Snapshot]]:
        """The metrics of all ingresses and of all replicas. `ingress`: the metrics of this ingress."""


def serving(statuses: list[Status]) -> ModelCard:
    """The card of the service: the card of the first healthy replica with the newest weights, with the slots of all.

    NotReady, with the failure of every replica, if none is healthy.
    """
    healthy = [status.card for status in statuses if status.failure is None]
    if not healthy:
        reasons = "; ".join(f"{status.replica}: {status.failure}" for status in statuses)
        raise NotReady(f"no replica can generate: {reasons}", retry_after=5.0)
    newest: dict[str, Weights] = {}
    for card in healthy:
        if newest.setdefault(card.weights.base, card.weights).older_than(card.weights):
            newest[card.weights.base] = card.weights
    current = [card for card in healthy if card.weights == newest[card.weights.base]]
    slots = sum(card.slots for card in current)
    return replace(current[0], slots=slots, num_outdated=len(healthy) - len(current))
