"""Several answers at once: all results, or their items as they come. An error or cancellation ends all of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Iterable, Sequence
from typing import Any, TypeVar

_T = TypeVar("_T")


async def all_of(jobs: Iterable[Coroutine[Any, Any, _T]]) -> list[_T]:
    """The results in order. The first error, or a cancellation of the caller, cancels the other jobs."""
    tasks = [asyncio.ensure_future(job) for job in jobs]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await _finished(asyncio.gather(*tasks, return_exceptions=True))


async def merged(streams: Sequence[AsyncGenerator[_T]]) -> AsyncGenerator[tuple[int, _T]]:
    """The items of all streams as they come, each with the number of its stream.

    Every stream computes one item ahead. Closing the merged stream, or an error in one stream, closes all.
    """
    pending = {_following(stream): number for number, stream in enumerate(streams)}
    try:
        while pending:
            done, _ = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in sorted(done, key=pending.__getitem__):
                number = pending.pop(task)
                if (item := task.result()) is not None:
                    pending[_following(streams[number])] = number
                    yield number, item
    finally:
        for task in pending:
            task.cancel()
        await _finished(_close(list(pending), streams))


def _following(stream: AsyncGenerator[_T]) -> asyncio.Future[_T | None]:
    return asyncio.ensure_future(anext(stream, None))


async def _close(tasks: Iterable[asyncio.Future[Any]], streams: Iterable[AsyncGenerator[Any]]) -> None:
    await asyncio.gather(*tasks, return_exceptions=True)
    for stream in streams:
        await stream.aclose()


async def _finished(cleaning: Coroutine[Any, Any, Any] | asyncio.Future[Any]) -> None:
    """Waits for a clean-up. The clean-up goes on even if the wait is cancelled."""
    await asyncio.shield(cleaning)
