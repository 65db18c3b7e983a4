"""The interface through which the routes use the replicas. `rayserve/ray_backend.py` implements it."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

from service.errors import MrpServeError, NotReady
from service.messages.replica_status import (
    ControlCommand,
    ControlResult,
    ModelCard,
    PauseState,
    Snapshot,
    Status,
    outdated,
    resting,
)
from service.messages.wire import Encoded, Failure, ReplicaRequest, ReplicaStream, Weights


class Backend(Protocol):
    """The replicas that generate. Every method may raise an MrpServeError."""

    async def encode(self, request: ReplicaRequest) -> Encoded | Failure:
        """The prompt of a request as token ids, and token ids as text."""

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
    """The card of the service: the card of the first replica that requests go to, with the slots of all of these.

    NotReady, with the failure of every replica, if none is healthy.
    """
    healthy = [status for status in statuses if status.failure is None]
    if not healthy:
        raise none_ready({status.replica: status.failure for status in statuses})
    away = resting(healthy)
    current = [status.card for status in healthy if status.replica not in away]
    slots = sum(card.slots for card in current)
    return replace(current[0], slots=slots, num_outdated=len(outdated(healthy)))


def problem_of(status: Status, weights: Weights | None, pause: PauseState) -> str | None:
    """Why a replica answers no request now. None if it can. `weights`, `pause`: the newest of the service.

    If the whole service is paused or asleep, requests wait on purpose, so that is no problem.
    """
    served = status.card.weights
    if status.failure is not None:
        return status.failure
    if not status.reachable:
        return "it does not respond"
    if weights is not None and served.older_than(weights):
        return f"it has weights of version {served.version}, allowed are {weights.version} and later"
    if status.pause.halted and not pause.halted:
        return "it is paused or asleep, and the service is not"
    return None


def none_ready(problems: Mapping[str, str | None]) -> NotReady:
    """The error that names the problem of every replica."""
    reasons = "; ".join(f"{replica}: {problem}" for replica, problem in problems.items())
    return NotReady(f"no replica can generate: {reasons}", retry_after=5.0)
