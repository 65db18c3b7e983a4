"""Requests over Ray Serve's handles. Turns Serve's cancellation, back-pressure and lost replicas into our errors.

Serve queues the requests that no replica takes. This module ends a request that waits there past its time limit. Later
the engine watches the time limit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

from ray.exceptions import RayError, RayTaskError
from ray.serve.exceptions import BackPressureError, RayServeException
from ray.serve.handle import DeploymentHandle

from service.errors import NotReady, QueueFull, ReplicaLost
from service.rayserve.report import Listener, reporting_to
from service.wire import Failure, Items, Status, Work, patience_s, too_late

#: seconds after which a client may try again
_RETRY_S = 1.0


class HandleRequests:
    """Implements `Requests` over a handle of the generator. `routed` gets how the replica of each was chosen."""

    def __init__(self, generator: DeploymentHandle[Any], routed: Listener) -> None:
        # A handle for each method, made once: every `options` makes a handle. Ours are plain dataclasses.
        plain: dict[str, Any] = {"request_serialization": "pickle", "response_serialization": "pickle"}
        self._count = generator.options(method_name="count", **plain)
        self._stream = generator.options(method_name="stream", stream=True, **plain)
        self._routed = routed

    async def count(self, work: Work) -> int | Failure:
        """The number of tokens of a work's prompt."""
        return cast(int | Failure, await self._call(self._count, work))

    async def _call(self, method: Any, work: Work) -> object:
        with _errors(work):
            with reporting_to(self._routed):
                response: Any = method.remote(work)
            try:
                async with asyncio.timeout(patience_s(work)):
                    return await response
            except BaseException:
                response.cancel()
                raise

    async def stream(self, work: Work) -> Items:
        """The answer block by block. Closing the stream cancels the replica's task."""
        with _errors(work):
            with reporting_to(self._routed):
                items: Any = self._stream.remote(work)
            try:
                async with asyncio.timeout(patience_s(work)):
                    item = await anext(items)
                while True:
                    yield item
                    item = await anext(items)
            except StopAsyncIteration:
                return
            finally:
                items.cancel()

    async def learn(self, statuses: Sequence[Status]) -> None:
        """Needs nothing: Serve tells its handles of the replicas."""


@contextmanager
def _errors(work: Work) -> Iterator[None]:
    """Turns Serve's errors into ours. An exception of a replica's code is a bug and is raised unchanged."""
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
