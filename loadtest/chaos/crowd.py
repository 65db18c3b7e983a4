"""Thousands of clients in one process.

httpx looks at every connection of its pool for every request, so a crowd would take the cores that the service needs.
aiohttp does not.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from loadtest.generator.protocol import Observation, Reader, Route, reader
from loadtest.harness import GENERATE, Outcome, outcome_of


class Crowd:
    """Clients of one service. `opened` makes it."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    @classmethod
    @asynccontextmanager
    async def opened(cls, url: str) -> AsyncIterator[Crowd]:
        """A crowd with as many connections as it has requests at a time."""
        limit, timeout = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(total=180)
        async with aiohttp.ClientSession(url, connector=limit, timeout=timeout) as session:
            yield cls(session)

    async def ask(self, body: dict[str, Any]) -> Outcome:
        """Sends one request and reads the whole answer, streamed or not."""
        began = time.monotonic()
        seen = Observation(Route(GENERATE, bool(body.get("stream")), openai=False), body.get("mode", ""), began, began)
        try:
            async with self._session.post(GENERATE, json=body) as response:
                seen.status = response.status
                await _read(response, reader(seen))
        except (aiohttp.ClientError, TimeoutError) as error:
            return Outcome(0, error=f"{type(error).__name__}: {error}", total_s=time.monotonic() - began)
        return outcome_of(seen, began)


async def _read(response: aiohttp.ClientResponse, into: Reader) -> None:
    if response.status != 200:
        into.refused(await response.read(), response.headers.get("retry-after"), time.monotonic())
    elif not into.seen.route.stream:
        into.whole(await response.read(), time.monotonic())
    else:
        async for line in response.content:
            into.line(line.rstrip(b"\r\n"), time.monotonic())
        into.end(time.monotonic())
