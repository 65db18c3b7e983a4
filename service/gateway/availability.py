"""The model card that one ingress knows. A task asks the replicas for it every second, so no request waits for that.

While no replica runs on purpose (scaled to zero), the last card stays valid with 0 slots.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import Context
from dataclasses import replace

from service.admission.controller import AdmissionController
from service.errors import ControllerAway, MrpServeError, NotReady, ScaledToZero
from service.gateway.backend import Backend, serving
from service.gateway.metrics import Throttled
from service.messages.replica_status import ModelCard, Status
from service.tracebacks import without_message

_log = logging.getLogger(__name__)


class Availability:
    """Keeps the card, and passes every new card to the admission controller. `on_card` gets it with the statuses.

    `timeout_s`: the longest wait for the first card of a service that is scaled to zero. `poll_s`: seconds between
    two polls. `failed`: whether the last poll found no replica that can generate.
    """

    def __init__(
        self,
        backend: Backend,
        admission: AdmissionController,
        timeout_s: float,
        on_card: Callable[[ModelCard, Sequence[Status]], None] = lambda *_: None,
        poll_s: float = 1.0,
    ) -> None:
        self._backend, self._admission = backend, admission
        self._timeout_s, self._poll_s = timeout_s, poll_s
        self._on_card = on_card
        self._card: ModelCard | None = None
        self.failed = False
        self._polling: asyncio.Task[None] | None = None
        self._waiting = 0
        #: as `poll`, at most ten times a second
        self.statuses = Throttled(self.poll)

    @property
    def has_waiting(self) -> bool:
        return self._waiting > 0

    async def card(self) -> ModelCard:
        """The card of the service. NotReady while no replica can generate, except when scaled to zero.

        Waits only before the first card, and after a poll that found no replica.
        """
        if self._card is None:
            await self._first()
        elif self.failed:
            with suppress(ScaledToZero):
                await self.statuses()
        if self._card is None:
            raise AssertionError("a poll of the replicas gave neither a card nor an error")
        return self._card

    async def poll(self) -> list[Status]:
        """Asks the replicas for their cards now. NotReady if none can generate, ScaledToZero if there is none.

        Updates of the weights call this, too, and GET /health by `statuses`.
        """
        self._keep_polling()
        try:
            statuses = await self._backend.statuses()
            card = serving(statuses)
        except ScaledToZero:
            if self._card is not None:
                self._observe(replace(self._card, slots=0), ())
            raise
        except ControllerAway:  # the last card is good
            raise
        except MrpServeError:
            self.failed = True
            raise
        self._observe(card, statuses)
        return statuses

    def _observe(self, card: ModelCard, statuses: Sequence[Status]) -> None:
        self._card, self.failed = card, False
        self._admission.serves(card)
        self._on_card(card, statuses)

    async def _first(self) -> None:
        """Waits for the first card. A request that waits makes a service at zero replicas start one."""
        self._waiting += 1
        try:
            async with asyncio.timeout(self._timeout_s) as limit:
                # The loop checks `expired` itself: Python 3.11's `wait_for` may drop the cancellation.
                while not limit.expired():
                    try:
                        await self.statuses()
                        return
                    except ScaledToZero:
                        if self._card is not None:
                            return
                    await asyncio.sleep(self._poll_s)
            raise TimeoutError
        except TimeoutError:
            raise NotReady(f"no replica started within {self._timeout_s:g} s", retry_after=self._poll_s) from None
        finally:
            self._waiting -= 1

    def _keep_polling(self) -> None:
        if self._polling is None or self._polling.done():
            # A context of its own: the context of the first request would keep that request.
            self._polling = asyncio.get_running_loop().create_task(self._poll_for_ever(), context=Context())

    async def _poll_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self._poll_s)
            try:
                await self.poll()
            except (ScaledToZero, ControllerAway):
                pass
            except NotReady as error:
                self._admission.reject_waiting(error)
            except Exception as error:  # noqa: BLE001 - the last card is good while Serve's controller is away
                _log.warning("the replicas could not be asked", extra={"exception": without_message(error)})
