"""The places at the replicas. Each running request has one; the other requests wait in a fair queue.

A request frees its place when it ends, however it ends. A freed place, or a call of `resize`, wakes waiting requests.
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
    """One waiting request. `has_place`: a place is taken for it, even if it is being cancelled."""

    turn: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    has_place: bool = False


class Slots:
    """Gives out places. `resize` sets their number; before the first call every request waits."""

    def __init__(self, queue: FairQueue[Waiter], throughput: Throughput) -> None:
        self._queue, self._throughput = queue, throughput
        self._places = self._used = 0

    @property
    def used(self) -> int:
        """The number of places taken."""
        return self._used

    def resize(self, places: int) -> None:
        """Sets the number of places. If more are taken, no request gets one until enough have ended."""
        if places != self._places:
            self._places = places
            self._changed()

    async def enter(self, claim: Claim, timeout_s: float, on_wait: Callable[[], None] = lambda: None) -> None:
        """Waits for a place and takes it; `leave` must follow. TimeoutError after `timeout_s` without a place.

        `on_wait` is called if no place is free now.
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
            if waiter.has_place:  # the place came after the timeout or the cancellation
                self.leave()
            else:
                self._queue.remove(waiter)
            raise

    def turn_away(self, error: MrpServeError) -> None:
        """If there are no places, ends every waiting request with a copy of `error`.

        Each gets a copy, since tasks that raise the same object at the same time extend one traceback.
        """
        if not self._places:
            for waiter in self._queue:
                if not waiter.turn.done():
                    waiter.turn.set_exception(copy(error))

    def leave(self) -> None:
        """Frees a place."""
        self._used -= 1
        self._changed()

    def _changed(self) -> None:
        """Gives free places to the requests whose turn it is."""
        while self._used < self._places and len(self._queue):
            waiter = self._queue.pop()
            waiter.has_place = True
            self._used += 1
            if not waiter.turn.done():  # done: the request is being cancelled and frees its place itself
                waiter.turn.set_result(None)
        self._throughput.occupied(self._used, self._places)
