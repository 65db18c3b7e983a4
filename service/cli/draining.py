"""The end of a service: every ingress is asked to take nothing new, and what is in hand is waited for.

Knows Serve's handles; starts and stops nothing (`cluster.py`).
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from service.cli.cluster import APPLICATION

#: how often ingresses are asked what they have in hand
_POLL_S = 0.1
#: how long an ingress may take to answer, and requests that were cut to end
_CONTROL_S = 5.0
#: for the last bytes of answers on their way through Serve's proxy
_SETTLE_S = 0.2


async def drain(timeout_s: float) -> bool:
    """No new requests; waits until those in flight are answered. False: some had to be cut after `timeout_s`."""
    in_time = await _answered(timeout_s)
    if not in_time:
        with suppress(TimeoutError):
            await _ask_ingresses("cut")
        await _answered(_CONTROL_S)
    await asyncio.sleep(_SETTLE_S)
    return in_time


async def _answered(timeout_s: float) -> bool:
    """Waits until no ingress has a request in hand; False if that took longer."""
    try:
        async with asyncio.timeout(timeout_s) as limit:
            while await _busy():
                if limit.expired():  # and not noticed: Python 3.11's `wait_for` drops what comes along with its result
                    return False
                await asyncio.sleep(_POLL_S)
    except TimeoutError:
        return False
    return True


async def _busy() -> bool:
    """Whether an ingress has requests in hand, or does not say."""
    try:
        return any(await _ask_ingresses("drain"))
    except TimeoutError:
        return True


async def _ask_ingresses(method: str) -> list[Any]:
    """What all ingresses answer; nothing if there is none yet."""
    import ray
    from ray import serve
    from ray.serve.exceptions import RayServeException

    if not ray.is_initialized():
        return []
    try:
        response = serve.get_app_handle(APPLICATION).broadcast(method)
        answers = await response.results_async(timeout_s=_CONTROL_S, return_exceptions=True)
    except RayServeException:
        return []
    return [answer for answer in answers if not isinstance(answer, Exception)]
