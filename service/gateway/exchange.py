"""Which weights may answer, as one ingress knows it, and their exchange in all replicas. The highest version wins.

An ingress learns the newest version from the replicas' cards, from other ingresses and from its own exchanges. Every
request names it, so a replica that has started again cannot answer with older weights. It is told to take the newest.
"""

from __future__ import annotations

import asyncio
import logging
import time

from service.errors import NotReady, WeightsConflict, WeightUpdateFailed
from service.gateway.backend import Backend, serving
from service.tracebacks import without_message
from service.wire import ModelCard, Status, Weights, WeightUpdateResult

_log = logging.getLogger(__name__)

#: seconds between two attempts to give a replica the newest weights
_AGAIN_S = 2.0


class WeightsExchange:
    """The weights of a service, at one ingress.

    `base`: the setting `model`. `newest`: None before the first exchange.
    """

    def __init__(self, backend: Backend, base: str) -> None:
        self.newest: Weights | None = None
        self._backend, self._base = backend, base
        self._one = asyncio.Lock()
        self._catching_up: asyncio.Task[None] | None = None
        self._due = 0.0

    def learn(self, weights: Weights) -> None:
        """Notes that these weights are known."""
        if weights.version and weights.base == self._base and (self.newest is None or self.newest.older_than(weights)):
            self.newest = weights

    def saw(self, card: ModelCard) -> None:
        """Learns from the card of the service. Gives replicas that are behind the newest weights, in the background."""
        self.learn(card.weights)
        newest = self.newest
        if newest is None or not (card.num_outdated or card.weights.older_than(newest)):
            return
        if self._catching_up is None and time.monotonic() >= self._due:
            self._catching_up = asyncio.create_task(self._catch_up(newest))

    async def statuses(self) -> list[Status]:
        """Those of all replicas that respond. NotReady if none does."""
        statuses = await self._backend.statuses()
        self.saw(serving(statuses))
        return statuses

    async def to(self, model: str, version: int | None) -> list[WeightUpdateResult]:
        """Gives all replicas other weights. `version`: None is the next one.

        WeightsRefused if a replica cannot take them: nothing is changed then. WeightsConflict if newer ones answer.
        ExchangeFailed if some replicas could not take them after all: those answer nothing until they have.
        """
        async with self._one:
            wanted = self._wanted(serving(await self.statuses()), model, version)
            self._raise_first(await self._backend.check_weights(wanted))
            exchanged = await self._backend.update_weights(wanted)
            if all(one.error is not None for one in exchanged):
                self._raise_first(exchanged)
            for one in exchanged:
                self.learn(one.weights)
            if self.newest is not None:
                await self._backend.announce(self.newest)
        if self.newest != wanted:
            raise WeightsConflict(f"version {_version(self.newest)} came in before version {wanted.version}")
        self._raise_if_some_failed(exchanged)
        return exchanged

    def _wanted(self, card: ModelCard, model: str, version: int | None) -> Weights:
        known = self.newest or card.weights
        wanted = Weights(known.version + 1 if version is None else version, model, self._base)
        if version is not None and version <= known.version and wanted != known:
            raise WeightsConflict(f"version is {version}, allowed is more than {known.version}", param="version")
        return wanted

    def _raise_first(self, told: list[WeightUpdateResult]) -> None:
        if not told:
            raise NotReady("no replica responds", retry_after=5.0)
        for one in told:
            if one.error is not None:
                raise one.error

    def _raise_if_some_failed(self, told: list[WeightUpdateResult]) -> None:
        failed = [f"{one.replica}: {one.error.message}" for one in told if one.error is not None]
        if failed:
            raise WeightUpdateFailed(
                f"{len(failed)} of {len(told)} replicas could not take the weights. "
                "They answer nothing until they have: "
                f"{'; '.join(failed)}",
                retry_after=_AGAIN_S,
            )

    async def _catch_up(self, newest: Weights) -> None:
        try:
            for one in await self._backend.update_weights(newest):
                if one.error is not None:
                    _log.warning("a replica cannot take the newest weights: %s: %s", one.replica, one.error.message)
        except Exception as error:  # noqa: BLE001 - the next card leads to the next attempt
            _log.warning("the replicas could not be given weights", extra={"exception": without_message(error)})
        finally:
            self._catching_up, self._due = None, time.monotonic() + _AGAIN_S


def _version(weights: Weights | None) -> int:
    return weights.version if weights else 0
