"""The places at the replicas: as many requests are let through as there are, the others wait in a fair queue.

A place is given on as soon as its request ends, however it ends; who waits is woken by that and by `resize`. Knows no
HTTP and no request but its claim.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field

from service.admission.throughput import Throughput
from service.errors import MrpServeError
from service.fair_queue import Claim, FairQueue


@dataclass(eq=False, slots=True)
class Waiter:
    """One request that waits. `has_place`: one is taken for it, even if nobody is there any more to use it."""

    turn: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    has_place: bool = False


class Slots:
    """`places` are set by `resize`; before that everybody waits."""

    def __init__(self, queue: FairQueue[Waiter], throughput: Throughput) -> None:
        self._queue, self._throughput = queue, throughput
        self._places = self._used = 0

    @property
    def used(self) -> int:
        """Places taken."""
        return self._used

    def resize(self, places: int) -> None:
        """There are so many places now. Fewer than are taken: nobody is let through until enough have ended."""
        if places != self._places:
            self._places = places
            self._changed()

    async def enter(self, claim: Claim, timeout_s: float, on_wait: Callable[[], None] = lambda: None) -> None:
        """Waits for a place and takes it; `leave` must follow. TimeoutError when there is none for `timeout_s`.

        `on_wait` is called if there is none now.
        """
        waiter = Waiter()
        self._queue.push(waiter, claim)
        try:
            self._changed()
            if not waiter.has_place:
                on_wait()
                async with asyncio.timeout(timeout_s):
                    await waiter.turn
        except BaseException:
            if waiter.has_place:  # it came too late to be used
                self.leave()
            else:
                self._queue.remove(waiter)
            raise

    def turn_away(self, error: MrpServeError) -> None:
        """There are no places and none will come: who waits is told so, each by a copy of the error.

        Tasks that raise one error object at the same time add to one traceback.
        """
        if not self._places:
            for waiter in self._queue:
                if not waiter.turn.done():
                    waiter.turn.set_exception(copy(error))

    def leave(self) -> None:
        """Gives a place on."""
        self._used -= 1
        self._changed()

    def _changed(self) -> None:
        """Lets through whoever's turn it is."""
        while self._used < self._places and len(self._queue):
            waiter = self._queue.pop()
            waiter.has_place = True
            self._used += 1
            if not waiter.turn.done():  # done: it is being cancelled, and will give its place on
                waiter.turn.set_result(None)
        self._throughput.occupied(self._used, self._places)
