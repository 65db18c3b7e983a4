"""The choices of a request as OpenAI's server-sent events: unnamed JSON frames, then `[DONE]`.

The status is sent after the first item. A later error is a frame with an `error`, which OpenAI's client raises, and
no `[DONE]` follows. However the response ends, the requests of all choices end with it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from pydantic_core import to_json

from service.gateway.http.streams import FrameStream
from service.gateway.openai.answers import Writer
from service.gateway.openai.convert import Choice
from service.wire import Chunk, Ending, Progress

DONE = b"data: [DONE]\n\n"

Numbered = AsyncGenerator[tuple[int, Progress | Chunk | Ending]]


@dataclass(frozen=True, slots=True)
class Script:
    """What the frames need. `failed` counts an error that ends the stream and makes its body."""

    choices: tuple[Choice, ...]
    writer: Writer
    failed: Callable[[Exception], dict[str, Any]]


def choice_stream(items: Numbered, script: Script) -> FrameStream:
    """The items of all choices as events."""
    return FrameStream(_frames(items, script), items)


async def started(items: Numbered) -> Numbered:
    """The same items. Returns when the first has come; if that raises, `items` is closed."""
    try:
        first = await anext(items)
    except BaseException:
        await items.aclose()
        raise
    return _with_first(first, items)


async def _with_first(first: tuple[int, Progress | Chunk | Ending], items: Numbered) -> Numbered:
    async with aclosing(items):
        yield first
        async for item in items:
            yield item


async def _frames(items: Numbered, script: Script) -> AsyncGenerator[bytes]:
    opened: set[int] = set()
    endings: dict[int, Ending] = {}
    try:
        async for number, item in items:
            choice = script.choices[number]
            if number not in opened and (opening := script.writer.opening(choice)):
                yield _data(opening)
            opened.add(number)
            if isinstance(item, Ending):
                endings[number] = item
                frames = script.writer.closing(choice, item)
            elif isinstance(item, Chunk):  # these routes ask for no steps
                frames = script.writer.pieces(choice, item)
            else:
                continue
            for frame in frames:
                yield _data(frame)
    except Exception as error:  # noqa: BLE001 - the status is sent, so only a frame can report the error
        yield _data(script.failed(error))
        return
    if usage := script.writer.usage(endings):
        yield _data(usage)
    yield DONE


def _data(body: dict[str, Any]) -> bytes:
    return b"data: %b\n\n" % to_json(body)
