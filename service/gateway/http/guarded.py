"""uvicorn's HTTP protocol with limits for a client that sends a request and takes the answer.

A head is bounded in bytes, fields and time, a body in time. The number of connections is bounded: those that wait for
their client make room, and a few more may ask without a body, such as for the health.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
import struct
from asyncio import AbstractEventLoop, Transport
from typing import Any, Final, cast

from pydantic_core import to_json
from uvicorn._types import ASGISendEvent
from uvicorn.config import HTTP_PROTOCOLS, Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from service.gateway.http.bodies import BYTES_PER_S
from service.gateway.http.sockets import max_connections

#: the most bytes of a head with its request line, and the most fields; ends of a chunked body are bounded alike
MAX_HEAD: Final = 64 * 1024
MAX_FIELDS: Final = 128
#: seconds for a whole head, from the connection or its first byte on
HEAD_S: Final = 10.0
#: seconds without a byte of a body
PAUSE_S: Final = 30.0
#: seconds for a whole body, and one more for each BYTES_PER_S that have come
BODY_S: Final = 30.0
#: connections beyond the limit that may ask without a body
_EXTRA: Final = 64
#: the share of the connections that wait for their client that ends when there are too many
_MAKING_ROOM: Final = 1 / 16
#: bytes that are dropped after a refusal, and seconds for which a refused client may read
_DROPPED: Final = 1024 * 1024
_LAST_WORDS_S: Final = 1.0
#: seconds between two polls of a connection
_POLL_S: Final = 5.0
#: a client to which bytes wait takes at least LEAST_BYTES in LIMIT_S seconds
LIMIT_S = 60.0
LEAST_BYTES = 16 * 1024
_RESET = struct.pack("ii", 1, 0)

_FULL: Final = "too many connections are open, all with requests"
_CODES: Final = {
    400: "invalid_http",
    408: "request_timeout",
    431: "head_too_large",
    501: "not_implemented",
    503: "too_many_connections",
}


class GuardedProtocol(HttpToolsProtocol):
    """One connection. `since`: when it began to wait for its client, later by the time that a body has earned.

    `_unread`: bytes since the last end of a head or part of a body. `_last_byte`: when the last byte came. `_extra`:
    whether there are too many connections.
    """

    _limit: WriteLimit

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._unread = 0
        self._refused = self._extra = False
        self._refusal = (400, "this is no HTTP/1.1 request")
        self.since = self._last_byte = self.loop.time()

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]  # as uvicorn's
        super().connection_made(transport)
        self._limit = WriteLimit(transport)
        if (excess := len(self.connections) - max_connections()) > 0 and not self._make_room():
            self._extra = True
            if excess > _EXTRA:
                self._refuse(503, _FULL)
        self.loop.call_later(_POLL_S, self._poll)

    def data_received(self, data: bytes) -> None:
        """Gives uvicorn the data, in pieces that no head may exceed."""
        self._last_byte = self.loop.time()
        if self.timeout_keep_alive_task is not None:  # the connection was idle
            self.since = self._last_byte
        while data and not self._refused and not self.transport.is_closing():
            if (room := MAX_HEAD - self._unread) <= 0:
                self._refuse(431, f"the head has more than {MAX_HEAD} bytes")
            else:
                piece, data = data[:room], data[room:]
                self._unread += len(piece)
                super().data_received(piece)
        if self._refused:  # takes further bytes within a limit: else the system would take the refusal back
            self._unread += len(data)
            if self._unread > _DROPPED:
                self.transport.close()

    def on_headers_complete(self) -> None:
        self._unread = 0
        version = self.parser.get_http_version()
        if refusal := self._refusal_of_head(version):
            self._refusal = refusal
            raise ValueError  # the parser stops, and uvicorn refuses
        self.since = self.loop.time()
        super().on_headers_complete()
        if version == "1.0":
            _without_chunks(self.cycle)

    def _refusal_of_head(self, version: str) -> tuple[int, str] | None:
        """Why a request is refused by its head: a status and a message. None if it is not."""
        if len(self.headers) > MAX_FIELDS:
            return 431, f"the head has {len(self.headers)} fields, allowed are {MAX_FIELDS}"
        hosts = sum(name == b"host" for name, _ in self.headers)
        if hosts > 1 or (not hosts and version == "1.1"):
            return 400, f"the head has {hosts} fields `Host`, expected is one"
        codings = [value for name, value in self.headers if name == b"transfer-encoding"]
        if codings and b",".join(codings).strip().lower() != b"chunked":
            return 501, f"transfer-encoding is {b', '.join(codings)[:80].decode('latin-1')!r}, allowed is chunked"
        self._extra = self._extra and len(self.connections) > max_connections()
        if self._extra and self.parser.get_method() not in (b"GET", b"HEAD"):
            return 503, _FULL
        return None

    def on_body(self, body: bytes) -> None:
        self._unread = 0
        if self.busy:
            self.since += len(body) / BYTES_PER_S
        super().on_body(body)

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - uvicorn's own words
        """Called by uvicorn when the parser has stopped."""
        self._refuse(*self._refusal)

    @property
    def busy(self) -> bool:
        """Whether a request is being answered, or its body still comes."""
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is not None and not cycle.response_complete

    @property
    def waits(self) -> bool:
        """Whether the server waits for the client: for a request or the rest of its body."""
        return not self._refused and (not self.busy or (self.cycle.more_body and not self.flow.read_paused))

    def make_room(self) -> None:
        """Ends the connection at once, since others need its place."""
        if self.busy:
            self._refuse(503, "too many connections are open, and the body of this request came too slowly")
        self.transport.close()

    def _refuse(self, status: int, message: str) -> None:
        """Ends the connection, with an answer unless one has begun. Further bytes of the client are dropped."""
        answering = self.busy and self.cycle.response_started
        if self.busy:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if answering or self.transport.is_closing():
            self.transport.close()
            return
        self._refused, self._unread = True, 0
        self.transport.write(_answer(status, message))
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.loop.call_later(_LAST_WORDS_S, self.transport.close)

    def _poll(self) -> None:
        if self not in self.connections or self._refused:  # the connection is lost, or soon will be
            return
        now = self.loop.time()
        if self.busy:
            if self.flow.read_paused:  # the client waits for the server
                self.since = now
            elif self.cycle.more_body and now - self._last_byte > PAUSE_S:
                self._refuse(408, f"no byte of the body came for {PAUSE_S:g} s")
            elif self.cycle.more_body and now - self.since > BODY_S:
                self._refuse(408, f"the body took more than {BODY_S:g} s and 1 s for each {BYTES_PER_S} bytes")
        elif self.timeout_keep_alive_task is None and now - self.since > HEAD_S:
            if self._unread:
                self._refuse(408, f"the head took more than {HEAD_S:g} s")
            else:
                self.transport.close()
        self.loop.call_later(_POLL_S, self._poll)

    def connection_lost(self, exc: Exception | None) -> None:
        self._limit.resumed()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._limit.paused()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._limit.resumed()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._limit.closing()

    def on_response_complete(self) -> None:
        """As uvicorn's. The client must take the rest of the answer before the connection closes."""
        self.since = self.loop.time()
        super().on_response_complete()
        if self.transport.is_closing():
            self._limit.closing()

    def _make_room(self) -> bool:
        """Ends the connections that have waited for their client for longest. False if there are none."""
        connections = [cast(GuardedProtocol, connection) for connection in self.connections if connection is not self]
        waiting = sorted((other for other in connections if other.waits), key=lambda other: other.since)
        for connection in waiting[: 1 + int(len(waiting) * _MAKING_ROOM)]:
            connection.make_room()
        return bool(waiting)


class WriteLimit:
    """The limit of one connection. asyncio's calls about a protocol's buffer are passed on to `paused` and `resumed`.

    `paused`: the buffer is full, so nothing is added to it until `resumed`.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport, self._left = transport, 0
        self._timer: asyncio.TimerHandle | None = None

    def paused(self) -> None:
        self._left = self._transport.get_write_buffer_size()
        self._timer = asyncio.get_running_loop().call_later(LIMIT_S, self._poll)

    def closing(self) -> None:
        """The connection closes once its client has taken the rest. Watches that, too."""
        if self._timer is None and self._transport.get_write_buffer_size():
            self.paused()

    def resumed(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _poll(self) -> None:
        if self._left - self._transport.get_write_buffer_size() < LEAST_BYTES:
            # A reset: else the kernel keeps megabytes for a client that is not there to read them.
            self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            self._transport.abort()
        else:
            self.paused()


def _without_chunks(cycle: RequestResponseCycle) -> None:
    """An answer to a client of HTTP/1.0, which knows no chunks. Without a length it ends with its connection."""
    send, endless = cycle.send, False

    async def send_plainly(message: ASGISendEvent) -> None:
        nonlocal endless
        if message["type"] == "http.response.start":
            endless = all(name.lower() != b"content-length" for name, _ in message.get("headers", ()))
            cycle.chunked_encoding = False if endless else None
        elif message["type"] == "http.response.body" and endless:
            cycle.expected_content_length = len(message.get("body", b""))
        await send(message)

    cycle.send = send_plainly  # type: ignore[method-assign]


def guard_uvicorn() -> None:
    """Makes this the protocol of every server of this process whose configuration names none.

    For Serve's proxies, which have no option for it.
    """
    HTTP_PROTOCOLS["auto"] = f"{__name__}:{GuardedProtocol.__name__}"


def _answer(status: int, message: str) -> bytes:
    """An error as all routes send it."""
    request_id = secrets.token_hex(8)
    detail = {"code": _CODES[status], "message": message, "param": None, "request_id": request_id}
    body = to_json({"error": detail})
    head = f"content-type: application/json\r\ncontent-length: {len(body)}\r\nx-request-id: {request_id}\r\n"
    return STATUS_LINE[status] + head.encode() + b"connection: close\r\n\r\n" + body
