"""ASGI middleware that inflates request bodies with `Content-Encoding: gzip`, up to a limit."""

from __future__ import annotations

import zlib

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.errors import BodyTooLarge, InvalidRequest

#: zlib's window for gzip, the largest one
_GZIP = 31


class GzipBody:
    """Inflates bodies. A route that reads one gets BodyTooLarge over `max_bytes`, so a small body cannot fill memory.

    InvalidRequest for another encoding, and for a body that is no gzip.
    """

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app, self._max_bytes = app, max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Gives the application an inflated body."""
        encoding = Headers(scope=scope).get("content-encoding", "") if scope["type"] == "http" else ""
        if encoding.lower() not in {"", "identity"}:
            receive = _Inflated(encoding, receive, self._max_bytes).receive
        await self._app(scope, receive, send)


class _Inflated:
    """The body of one request."""

    def __init__(self, encoding: str, receive: Receive, max_bytes: int) -> None:
        self._encoding, self._receive = encoding, receive
        self._max_bytes, self._size = max_bytes, 0
        self._stream = zlib.decompressobj(_GZIP)

    async def receive(self) -> Message:
        """The next message, inflated."""
        if self._encoding.lower() not in {"gzip", "x-gzip"}:
            raise InvalidRequest(f"content-encoding is {self._encoding[:80]!r}, allowed are gzip and identity")
        message = await self._receive()
        if message["type"] != "http.request":
            return message
        more = message.get("more_body", False)
        return {**message, "body": self._inflate(message.get("body", b""), last=not more)}

    def _inflate(self, data: bytes, *, last: bool) -> bytes:
        try:
            inflated = self._stream.decompress(data, self._max_bytes - self._size + 1)
        except zlib.error:
            raise InvalidRequest("the body is not gzip, as its content-encoding says") from None
        self._size += len(inflated)
        if self._size > self._max_bytes:
            raise BodyTooLarge(
                f"the inflated body has more than {self._max_bytes} bytes, allowed are {self._max_bytes}"
            )
        if self._stream.unused_data or (last and not self._stream.eof):
            raise InvalidRequest("the body is not one whole gzip stream")
        return inflated
