"""Several answers at once: all of them, or their items as they come. Whoever leaves first ends them all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Iterable, Sequence
from typing import Any, TypeVar

_T = TypeVar("_T")


async def all_of(jobs: Iterable[Coroutine[Any, Any, _T]]) -> list[_T]:
    """The results in order. The first error, or being cancelled, cancels the others."""
    tasks = [asyncio.ensure_future(job) for job in jobs]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await _finished(asyncio.gather(*tasks, return_exceptions=True))


async def merged(streams: Sequence[AsyncGenerator[_T]]) -> AsyncGenerator[tuple[int, _T]]:
    """The items of all streams with the number of their stream, as they come.

    Every stream is asked for one item ahead. Closing this one, or an error in one of them, closes all.
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
    """Waits for a clean-up that goes on even if the waiting is cancelled."""
    await asyncio.shield(cleaning)
