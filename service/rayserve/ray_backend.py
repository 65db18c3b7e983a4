"""The replicas as Ray Serve handles: cancellation, back-pressure, dead and missing replicas as our errors.

Serve queues what the replicas do not take; a request that waits there longer than its own time limit is
given up here, everything later the engine times. Knows no HTTP and no engine.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

from ray.exceptions import RayError, RayTaskError
from ray.serve.exceptions import BackPressureError, RayServeException
from ray.serve.handle import DeploymentHandle

from service.errors import Asleep, EngineFailed, NotReady, QueueFull, ReplicaLost
from service.gateway.backend import serving
from service.rayserve.report import Listener, told
from service.rayserve.serve_state import is_asleep, why_none
from service.wire import Answer, Failure, Items, ModelCard, Snapshot, Status, Work, too_late

_log = logging.getLogger(__name__)

#: how long a control call to the replicas may take; for how long its answer is new, and for how long it is believed
_CONTROL_S = 3.0
_FRESH_S = 1.0
_BELIEVED_S = 3.0
#: how much later than the engine the ingress gives up
_GRACE_S = 5.0
#: when a client may try again
_RETRY_S = 1.0

_T = TypeVar("_T")


class RayBackend:
    """Implements `Backend` over handles of the two deployments of one application.

    `asked`: a second handle of the generator, for questions to all replicas. A handle keeps a count of the requests at
    every replica and forgets one it has not touched for a while; questions would keep a wrong one alive. `routed` is
    told how every request has found its replica. `may_sleep`: having no replicas may be intended.
    """

    def __init__(
        self,
        generator: DeploymentHandle[Any],
        asked: DeploymentHandle[Any],
        ingress: DeploymentHandle[Any],
        routed: Listener,
        may_sleep: bool = False,
    ) -> None:
        self._generator = generator
        self._asked = asked
        self._ingress = ingress
        self._routed, self._may_sleep = routed, may_sleep
        self._card: ModelCard | None = None
        self._card_since = 0.0
        self._renewing: asyncio.Task[None] | None = None
        self._statuses: list[Status] = []
        self._replicas: list[Snapshot] = []
        self._last_words = ""
        self._asking = asyncio.Lock()

    # --- requests ----------------------------------------------------------------------------------

    async def complete(self, work: Work) -> Answer | Failure:
        """The whole answer; cancelling cancels the replica's task."""
        with _errors(work):
            with told(self._routed):
                response: Any = self._generator.complete.remote(work)
            try:
                async with asyncio.timeout(_time_left(work)):
                    return cast(Answer | Failure, self._heard(await response))
            except BaseException:
                response.cancel()
                raise

    async def stream(self, work: Work) -> Items:
        """The answer block by block; closing cancels the replica's task."""
        with _errors(work):
            with told(self._routed):
                items: Any = self._generator.options(stream=True).stream.remote(work)
            try:
                async with asyncio.timeout(_time_left(work)):
                    item = await anext(items)
                while True:
                    yield self._heard(item)
                    item = await anext(items)
            except StopAsyncIteration:
                return
            finally:
                items.cancel()

    # --- the replicas ------------------------------------------------------------------------------

    async def card(self) -> ModelCard:
        """What is served; asked at most once a second.

        Requests that follow each other do not wait for that: many replicas need a while to answer.
        """
        if self._card is None or self._card_is_older_than(_BELIEVED_S):
            async with self._asking:
                if self._card is None or self._card_is_older_than(_FRESH_S):
                    await self._ask_for_card()
        elif self._card_is_older_than(_FRESH_S) and self._renewing is None:
            self._renewing = asyncio.create_task(self._renew())
        if self._card is None:
            raise AssertionError("a card that was asked for is neither there nor refused")
        return self._card

    def _card_is_older_than(self, seconds: float) -> bool:
        return time.monotonic() >= self._card_since + seconds

    async def _ask_for_card(self) -> None:
        self._card = None
        self._card = serving(await self.statuses())
        self._card_since = time.monotonic()

    async def _renew(self) -> None:
        """Asks beside the requests. Whatever goes wrong, the next request asks itself, and is told."""
        try:
            card = serving(await self.statuses())
            self._card, self._card_since = card, time.monotonic()
        except Exception:  # noqa: BLE001
            self._card = None
        finally:
            self._renewing = None

    async def statuses(self) -> list[Status]:
        """One for every replica that answers. NotReady with what Serve says when none does, Asleep when none should.

        One replica that hangs hides what all others say. Until Serve has removed it, what they said last holds.
        """
        try:
            self._statuses = await _of_all(self._asked, "status", Status)
            self._last_words = "" if self._statuses else self._last_words
        except TimeoutError:
            _log.warning("a replica does not answer within %s s", _CONTROL_S)
        if self._statuses:
            return self._statuses
        self._card, handle = None, self._generator
        if self._may_sleep and await asyncio.to_thread(is_asleep, handle.app_name, handle.deployment_name):
            raise Asleep("no replica runs while nobody asks; one starts for the next request", retry_after=_RETRY_S)
        why = await asyncio.to_thread(why_none, handle.app_name, handle.deployment_name)
        raise NotReady(f"{why}{self._last_words}", retry_after=5.0)

    async def snapshots(self, own: Snapshot) -> tuple[list[Snapshot], list[Snapshot]]:
        """The metrics of all processes that answer; while a replica hangs, what all of them said last."""
        asked = (_of_all(handle, "snapshot", Snapshot) for handle in (self._ingress, self._asked))
        ingresses, replicas = await asyncio.gather(*asked, return_exceptions=True)
        self._replicas = _known(replicas, self._replicas)
        return _known(ingresses, []) or [own], self._replicas

    def _heard(self, item: _T) -> _T:
        """Keeps what a replica said of its end; its process is gone by the time somebody asks."""
        if isinstance(item, Failure) and isinstance(item.error, EngineFailed):
            self._last_words = f"; before, {item.error.message}"
        return item


async def _of_all(handle: DeploymentHandle[Any], method: str, kind: type[_T]) -> list[_T]:
    """What all replicas of a deployment answer; dead ones are left out. TimeoutError if one does not answer."""
    try:
        results = await handle.broadcast(method).results_async(timeout_s=_CONTROL_S, return_exceptions=True)
    except (RayServeException, RayError) as error:
        _log.debug("%s of %s: %r", method, handle.deployment_name, error)
        return []
    return [result for result in results if isinstance(result, kind)]


def _known(answers: list[_T] | BaseException, before: list[_T]) -> list[_T]:
    """The answers, or those before if somebody did not answer."""
    if isinstance(answers, list):
        return answers
    if isinstance(answers, TimeoutError):
        return before
    raise answers


def _time_left(work: Work) -> float:
    """Until when the ingress waits for a replica; a little longer than an engine would."""
    return max(0.0, work.timeout_s - work.arrived.waited_s()) + _GRACE_S


@contextmanager
def _errors(work: Work) -> Iterator[None]:
    """Serve's errors as ours. An exception in a replica's code is a bug and stays one."""
    try:
        yield
    except BackPressureError as error:
        raise QueueFull("the queue is full", retry_after=_RETRY_S) from error
    except TimeoutError as error:
        raise too_late(work) from error
    except RayTaskError:
        raise
    except RayError as error:
        raise ReplicaLost("the replica was lost before the answer was complete", retry_after=_RETRY_S) from error
    except RayServeException as error:
        raise NotReady(f"no replica takes requests: {error}", retry_after=_RETRY_S) from error
