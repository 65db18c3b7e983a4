"""ASGI middleware before all routes: the request's id, the limit of its body, its origin. Also reads the API key."""

from __future__ import annotations

import re
import secrets
from collections.abc import Awaitable

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.errors import BodyTooLarge

REQUEST_ID = "x-request-id"
_FOREIGN = re.compile(r"[^A-Za-z0-9._:-]+")
_MAX_ID = 128


class RequestId:
    """Gives every request an id in `scope["request_id"]`. An id that the client sent is kept.

    `answer`: whether the response carries the id, too. False under Ray Serve, whose proxies add it. Every response
    also tells browsers to believe its content type.
    """

    def __init__(self, app: ASGIApp, answer: bool) -> None:
        self._app, self._answer = app, answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one connection."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        request_id = _id_of(scope)
        scope["request_id"] = request_id

        def send_with_headers(message: Message) -> Awaitable[None]:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["x-content-type-options"] = "nosniff"
                if self._answer:
                    headers[REQUEST_ID] = request_id
            return send(message)

        return await self._app(scope, receive, send_with_headers)


def given_key(headers: Headers) -> bytes:
    """The API key of `Authorization: Bearer`, else of `X-Api-Key`, unchanged. Empty if the client sent none."""
    scheme, _, bearer = headers.get("authorization", "").encode("latin-1").partition(b" ")
    return bearer.strip(b" \t") if scheme.lower() == b"bearer" else headers.get("x-api-key", "").encode("latin-1")


class CleanRequestId:
    """Cleans a client's request id, or makes one, before a server copies it into the response."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one connection."""
        if scope["type"] == "http":
            request_id = _id_of(scope)
            others = [(name, value) for name, value in scope["headers"] if name.lower() != REQUEST_ID.encode()]
            scope["headers"] = [*others, (REQUEST_ID.encode(), request_id.encode())]
        await self._app(scope, receive, send)


def _id_of(scope: Scope) -> str:
    """The client's request id, cleaned, else a new one."""
    return clean_id(Headers(scope=scope).get(REQUEST_ID, "")) or secrets.token_hex(8)


def clean_id(value: str) -> str:
    """A client's request id with a bounded length and only letters, digits and `._:-`."""
    return _FOREIGN.sub("", value)[:_MAX_ID]


class BodyLimit:
    """Raises BodyTooLarge in the route that reads a body over the limit.

    Both the declared Content-Length and the bytes received count.
    """

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app, self._max_bytes = app, max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one connection."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        declared = Headers(scope=scope).get("content-length", "0")
        received = 0

        async def receive_within_limit() -> Message:
            nonlocal received
            if declared.isdigit() and int(declared) > self._max_bytes:
                raise self._error(f"{declared} bytes")
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._max_bytes:
                raise self._error(f"more than {self._max_bytes} bytes")
            return message

        return await self._app(scope, receive_within_limit, send)

    def _error(self, size: str) -> BodyTooLarge:
        return BodyTooLarge(f"the body has {size}, allowed are {self._max_bytes}")
