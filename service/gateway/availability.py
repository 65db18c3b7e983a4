"""The model card that one ingress knows, also while the service is scaled to zero.

While no replica runs on purpose, the last card stays valid with 0 places. Requests are then checked as usual and
wait. As long as a request waits, the ingress asks for replicas every second, so a new replica gets work at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from service.admission.controller import AdmissionController
from service.errors import NotReady, ScaledToZero
from service.gateway.backend import Backend
from service.tracebacks import without_message
from service.wire import ModelCard

_log = logging.getLogger(__name__)

#: seconds between two queries to the replicas while a request waits
LOOK_S = 1.0


class Availability:
    """Reads the card from a backend and passes it to the admission controller.

    `timeout_s`: the longest wait for the first card of a service that is scaled to zero. `heard` gets every card, too.
    """

    def __init__(
        self,
        backend: Backend,
        admission: AdmissionController,
        timeout_s: float,
        heard: Callable[[ModelCard], None] = lambda _: None,
    ) -> None:
        self._backend = backend
        self._admission = admission
        self._timeout_s = timeout_s
        self._heard = heard
        self._last: ModelCard | None = None
        self._watch: asyncio.Task[None] | None = None
        self._waiting = 0

    @property
    def somebody_waits(self) -> bool:
        """Whether a request waits for the first card."""
        return self._waiting > 0

    async def card(self) -> ModelCard:
        """The card of the service. NotReady while no replica can generate, except when scaled to zero."""
        try:
            return await self._look()
        except ScaledToZero:
            return await self._first()

    def learn(self, card: ModelCard) -> None:
        """Stores `card` as the current one. GET /health calls this, too."""
        self._last = card
        self._admission.serves(card)
        self._heard(card)

    def watch(self) -> None:
        """Starts asking for new places, until no request waits for one."""
        if self._watch is None or self._watch.done():
            self._watch = asyncio.create_task(self._keep_looking())

    async def _first(self) -> ModelCard:
        """The first card of a service at zero replicas. The waiting request makes the service start one."""
        self._waiting += 1
        try:
            async with asyncio.timeout(self._timeout_s) as limit:
                # The loop checks `expired` itself: Python 3.11's `wait_for` may drop the cancellation.
                while not limit.expired():
                    await asyncio.sleep(LOOK_S)
                    with suppress(ScaledToZero):
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
                self._admission.reject_all(error)
            except Exception as error:  # noqa: BLE001 - keep serving waiting requests while Serve's controller is away
                _log.warning("the replicas could not be asked", extra={"exception": without_message(error)})

    async def _look(self) -> ModelCard:
        """The current card. Raises ScaledToZero if no replica runs and no card was ever known."""
        try:
            card = await self._backend.card()
        except ScaledToZero:
            if self._last is None:
                raise
            card = replace(self._last, slots=0)
        self.learn(card)
        return card
