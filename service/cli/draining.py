"""Drains a service: every ingress refuses new requests, and the requests in progress are waited for."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any

from service.cli.cluster import APPLICATION

if TYPE_CHECKING:
    from ray.serve.handle import DeploymentHandle

#: seconds between two queries for the requests in progress
_POLL_S = 0.1
#: seconds that an ingress may take to answer, and that requests have to end after a cut
_CONTROL_S = 5.0
#: seconds for the last bytes of answers to pass Serve's proxy
_SETTLE_S = 0.2


async def prepare() -> None:
    """Asks for the ingresses before the end, when Serve may not answer. The event loop must also run `drain`."""
    with suppress(TimeoutError):
        await _ask_ingresses("check_health")


@cache
def _ingresses() -> DeploymentHandle[Any]:
    from ray import serve

    return serve.get_app_handle(APPLICATION)


async def drain(timeout_s: float) -> bool:
    """Refuses new requests and waits for the running ones. False if some had to be cut after `timeout_s`."""
    in_time = await _answered(timeout_s)
    if not in_time:
        with suppress(TimeoutError):
            await _ask_ingresses("abort_requests")
        await _answered(_CONTROL_S)
    with suppress(TimeoutError):
        await _ask_ingresses("stop_listening")
    await asyncio.sleep(_SETTLE_S)
    return in_time


async def _answered(timeout_s: float) -> bool:
    """Waits for the requests in progress. False after `timeout_s` and the query that it falls in: none is cancelled."""
    until = time.monotonic() + timeout_s
    while True:
        with suppress(TimeoutError):  # an ingress that does not answer is busy
            if not any(await _ask_ingresses("drain")):
                return True
        remaining_s = until - time.monotonic()
        if remaining_s <= 0:
            return False
        await asyncio.sleep(min(_POLL_S, remaining_s))


async def _ask_ingresses(method: str) -> list[Any]:
    response = _ingresses().broadcast(method)
    answers = await response.results_async(timeout_s=_CONTROL_S, return_exceptions=True)
    return [answer for answer in answers if not isinstance(answer, Exception)]
