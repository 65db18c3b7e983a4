"""What the routes need of the replicas behind them: the one seam between HTTP and decoding.

`rayserve/ray_backend.py` implements it over Serve's handles.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from service.errors import NotReady
from service.wire import Answer, Failure, Items, ModelCard, Snapshot, Status, Work


class Backend(Protocol):
    """The replicas that generate. Every method may raise errors of ours."""

    async def card(self) -> ModelCard:
        """What is served. NotReady while no replica can generate, with the reason; Asleep if that is intended."""

    async def complete(self, work: Work) -> Answer | Failure:
        """The whole answer; cancelling aborts the request."""

    def stream(self, work: Work) -> Items:
        """The answer block by block; closing aborts the request."""

    async def statuses(self) -> list[Status]:
        """One for every replica that answers. NotReady with the reason when there is none."""

    async def snapshots(self, own: Snapshot) -> tuple[list[Snapshot], list[Snapshot]]:
        """The metrics of all ingresses, of which `own` is this one's, and of all replicas."""


def serving(statuses: list[Status]) -> ModelCard:
    """The card of the service: the first healthy replica's, with the places of all that are.

    NotReady with what they failed of when none is.
    """
    healthy = [status.card for status in statuses if status.failure is None]
    if not healthy:
        reasons = "; ".join(f"{status.replica}: {status.failure}" for status in statuses)
        raise NotReady(f"no replica can generate: {reasons}", retry_after=5.0)
    return replace(healthy[0], places=sum(card.places for card in healthy))
