"""What is served, as one ingress knows it: the replicas' card, also while there are none by intention.

While the service sleeps the last card holds, with no places, so that requests are checked as ever and then wait. As
long as somebody waits, the replicas are asked again every second: new ones get work at once. Knows no HTTP, no Ray.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import replace

from service.admission.controller import AdmissionController
from service.errors import Asleep, NotReady
from service.gateway.backend import Backend
from service.tracebacks import without_message
from service.wire import ModelCard

_log = logging.getLogger(__name__)

#: how often the replicas are asked while somebody waits
LOOK_S = 1.0


class Availability:
    """Asks a backend and tells the admission controller.

    `timeout_s`: how long the first card of a sleeping service is waited for.
    """

    def __init__(self, backend: Backend, admission: AdmissionController, timeout_s: float) -> None:
        self._backend = backend
        self._admission = admission
        self._timeout_s = timeout_s
        self._last: ModelCard | None = None
        self._watch: asyncio.Task[None] | None = None
        self._waiting = 0

    @property
    def somebody_waits(self) -> bool:
        """Whether a request waits to know what is served."""
        return self._waiting > 0

    async def card(self) -> ModelCard:
        """What is served. NotReady while no replica can generate, unless that is intended."""
        try:
            return await self._look()
        except Asleep:
            return await self._first()

    def learn(self, card: ModelCard) -> None:
        """This is served now; somebody who asks for health hears it, too."""
        self._last = card
        self._admission.serves(card)

    def watch(self) -> None:
        """Somebody waits for a place: looks for new ones until nobody does."""
        if self._watch is None or self._watch.done():
            self._watch = asyncio.create_task(self._keep_looking())

    async def _first(self) -> ModelCard:
        """The first card of a service that sleeps; waiting for it wakes the service."""
        self._waiting += 1
        try:
            async with asyncio.timeout(self._timeout_s) as limit:
                while not limit.expired():  # nor does everybody notice: Python 3.11's `wait_for` may drop that
                    await asyncio.sleep(LOOK_S)
                    with suppress(Asleep):
                        return await self._look()
            raise TimeoutError
        except TimeoutError:
            raise NotReady(f"no replica started within {self._timeout_s:g} s", retry_after=LOOK_S) from None
        finally:
            self._waiting -= 1

    async def _keep_looking(self) -> None:
        while self._admission.somebody_waits:
            await asyncio.sleep(LOOK_S)
            try:
                await self._look()
            except NotReady as error:
                self._admission.turn_away(error)
            except Exception as error:  # noqa: BLE001 - who waits must not be forgotten while Serve's controller is away
                _log.warning("the replicas could not be asked", extra={"exception": without_message(error)})

    async def _look(self) -> ModelCard:
        """What is served now. Asleep while that was never known."""
        try:
            card = await self._backend.card()
        except Asleep:
            if self._last is None:
                raise
            card = replace(self._last, places=0)
        self.learn(card)
        return card
