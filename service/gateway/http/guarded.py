"""uvicorn's HTTP protocol with limits for a client that sends a request and takes the answer.

A head is bounded in bytes, fields and time, a body in time. The number of connections is bounded: those that wait for
their client make room, and a few more may ask without a body, such as for the health.
"""

from __future__ import annotations

import secrets
from asyncio import AbstractEventLoop, Transport
from typing import Any, Final, cast

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from pydantic_core import to_json
from uvicorn._types import ASGI3Application
from uvicorn.config import HTTP_PROTOCOLS, Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from service.gateway.http.bodies import BYTES_PER_S
from service.gateway.http.heads import MAX_HEAD, refusal_of, without_chunks, written
from service.gateway.http.output import Output, Outputs
from service.gateway.http.sockets import max_connections

#: bytes that are read at once
_PIECE: Final = 2048
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
#: seconds until a client that sends no more is asked whether it is there; later ones take twice as long each
_PROBE_S: Final = 0.25

_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_FULL: Final = "too many connections are open, all with requests"
_CODES: Final = {
    400: "invalid_http",
    408: "request_timeout",
    431: "head_too_large",
    501: "not_implemented",
    503: "too_many_connections",
    505: "version_not_supported",
}


class GuardedProtocol(HttpToolsProtocol):
    """One connection. `since`: when it began to wait for its client, later by the time that a body has earned.

    `_input`: bytes that wait behind a request in work. `_unread`: bytes since the last end of a head or part of a body.
    `_last_byte`: when the last byte came. `_extra`: whether there are too many connections. `_running`: the first
    request without a whole answer; `cycle` is the last one whose head has come. `_held`: a request that waits for the
    client to read earlier answers.
    """

    _output: Output
    _running: RequestResponseCycle | None = None
    _held: tuple[RequestResponseCycle, ASGI3Application] | None = None

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._outputs: Outputs = vars(server_state).setdefault("outputs", Outputs())  # of all connections
        self._input, self._unread = bytearray(), 0
        self._refused = self._extra = self._half_closed = False
        self._refusal = (400, "this is no HTTP/1.1 request")
        self._last_words: tuple[int, str] | None = None
        self.since = self._last_byte = self.loop.time()

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]  # as uvicorn's
        self._output = Output(transport, self._outputs)
        super().connection_made(cast(Transport, self._output))
        if (excess := len(self.connections) - max_connections()) > 0 and not self._make_room():
            self._extra = True
            if excess > _EXTRA:
                self._refuse(503, _FULL)
        self.loop.call_later(_POLL_S, self._poll)

    # --- requests ----------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Gives uvicorn the data, in pieces that no head may exceed."""
        self._last_byte = self.loop.time()
        if self.timeout_keep_alive_task is not None:  # the connection was idle
            self.since = self._last_byte
        if self._refused:  # takes further bytes within a limit: else the system would take the refusal back
            self._unread += len(data)
            if self._unread > _DROPPED:
                self._output.close_now()
        else:
            self._input += data
            self._read_input()

    def _read_input(self) -> None:
        """Reads requests, until one waits for the answer to another: a head that is read takes 50 times its bytes."""
        while self._input and not (self.pipeline or self._refused or self.transport.is_closing()):
            if (room := MAX_HEAD - self._unread) <= 0:
                self._refuse(431, f"the head has more than {MAX_HEAD} bytes")
                break
            piece = bytes(self._input[: min(room, _PIECE)])
            del self._input[: len(piece)]
            self._unread += len(piece)
            self._feed(piece)

    def _feed(self, data: bytes) -> None:
        """Gives the parser data. A request that asks for another protocol is read as if it did not, which HTTP allows.

        The parser leaves such a request after its head, without its body.
        """
        self._unset_keepalive_if_required()
        while True:
            try:
                return self.parser.feed_data(data)
            except HttpParserUpgrade as upgrade:
                fields = [(name, value) for name, value in self.headers if name != b"upgrade"]
                head = written(self.parser.get_method(), self.url, self.parser.get_http_version(), fields)
                data = head + data[upgrade.args[0] :]
                self.parser = HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's
            except HttpParserError:
                return self._refuse(*self._refusal)

    def on_header(self, name: bytes, value: bytes) -> None:
        """As uvicorn's, without the white space at a value's end, which the parser leaves."""
        name, value = name.lower(), value.rstrip(b" \t")
        if name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        self._unread = 0
        method, version = self.parser.get_method(), self.parser.get_http_version()
        if refusal := refusal_of(method, self.url, version, self.headers) or self._refusal_of_full_server(method):
            self._refusal = refusal
            raise ValueError  # the parser stops, and uvicorn refuses
        if self.parser.should_upgrade():
            return  # the parser reads this head again
        self.since = self.loop.time()
        if version == "1.0":  # its clients know no interim answers
            self.expect_100_continue = False
        super().on_headers_complete()
        if version == "1.0":
            without_chunks(self.cycle)

    def _refusal_of_full_server(self, method: bytes) -> tuple[int, str] | None:
        self._extra = self._extra and len(self.connections) > max_connections()
        return (503, _FULL) if self._extra and method not in (b"GET", b"HEAD") else None

    def on_body(self, body: bytes) -> None:
        self._unread = 0
        if self.busy:
            self.since += len(body) / BYTES_PER_S
        super().on_body(body)

    def on_message_complete(self) -> None:
        if not self.parser.should_upgrade():
            super().on_message_complete()

    # --- answers -----------------------------------------------------------------------------------

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        """Begins to answer a request, once the client has read earlier answers."""
        self._running = cycle
        if self.flow.write_paused:
            self._held = cycle, app
        else:
            super()._start_asgi_task(cycle, app)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._held is not None:
            held, self._held = self._held, None
            super()._start_asgi_task(*held)

    def on_response_complete(self) -> None:
        self.since = self.loop.time()
        super().on_response_complete()
        self._read_input()
        if self._owes_answer:
            return
        if self._last_words is not None:
            self._refuse(*self._last_words)
        elif self._half_closed:  # there is no further request, or it is not whole
            self.transport.close()

    def eof_received(self) -> bool:  # type: ignore[override]  # as asyncio's
        """A client that sends no more gets the answers to its whole requests. Any other connection ends."""
        if self.transport.is_closing() or not self._owes_answer:
            return False
        self._drop_incomplete()
        if not self._half_closed:
            self._half_closed = True
            self._probe(_PROBE_S)
        return True

    def _probe(self, pause_s: float) -> None:
        """Asks whether a client that sends no more is still there: its system answers with a reset if it is not.

        Asks by the interim answer that every client may get, and once by a zero before the size of a stream's chunk.
        """
        if self not in self.connections or (cycle := self._running) is None:
            return
        if self._output.is_reset:
            self._output.abort()
            return
        if not cycle.response_started and cycle.scope["http_version"] == "1.1":
            self.transport.write(_CONTINUE)
        elif cycle.chunked_encoding and not cycle.response_complete and pause_s == _PROBE_S:
            self.transport.write(b"0")
        self.loop.call_later(pause_s, self._probe, min(2 * pause_s, _POLL_S))

    def connection_lost(self, exc: Exception | None) -> None:
        self._output.lose()
        super().connection_lost(exc)
        if self._owes_answer and self._running is not None:
            self._running.disconnected = True
            self._running.message_event.set()

    @property
    def busy(self) -> bool:
        """Whether a request is being answered, or its body still comes."""
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is not None and not cycle.response_complete

    @property
    def _owes_answer(self) -> bool:
        """Whether a request has come whole, and its answer is not whole."""
        cycle = self._running
        return cycle is not None and not (cycle.more_body or cycle.response_complete or cycle.disconnected)

    def _drop_incomplete(self) -> None:
        """Leaves alone a request that does not come whole, behind one that is being answered."""
        if self.pipeline and self.cycle.more_body and not self._input:
            self.pipeline.popleft()
            self.cycle = self.pipeline[0][0] if self.pipeline else cast(RequestResponseCycle, self._running)

    # --- ends --------------------------------------------------------------------------------------

    def waiting_since(self, now: float) -> float | None:
        """Since when the server waits for the client: for bytes, or until it reads. None if it does not."""
        if self._output.is_slow(now):
            return self._output.since
        incomplete = self.busy and self.cycle.more_body and not self.flow.read_paused
        return None if self._refused or self._owes_answer or (self.busy and not incomplete) else self.since

    def make_room(self) -> None:
        """Ends the connection at once, since others need its place."""
        if self._output.is_slow(self.loop.time()):
            self._output.reset()
            return
        if self.busy:
            self._refuse(503, "too many connections are open, and the body of this request came too slowly")
        self._output.close_now()

    def _refuse(self, status: int, message: str) -> None:
        """Ends the connection, with an answer unless one has begun. Further bytes of the client are dropped."""
        if self._owes_answer:  # to an earlier request
            self._input.clear()
            self._drop_incomplete()
            self._refused, self._last_words = True, (status, message)
            return
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
        self.loop.call_later(_LAST_WORDS_S, self._output.close_now)

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

    def _make_room(self) -> bool:
        """Ends the connections that have waited for their client for longest. False if there are none."""
        now = self.loop.time()
        connections = (cast(GuardedProtocol, connection) for connection in self.connections if connection is not self)
        waiting = {other: since for other in connections if (since := other.waiting_since(now)) is not None}
        for connection in sorted(waiting, key=waiting.__getitem__)[: 1 + int(len(waiting) * _MAKING_ROOM)]:
            connection.make_room()
        return bool(waiting)


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
