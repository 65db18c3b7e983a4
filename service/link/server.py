"""The replica's end of links: it answers the calls of all ingresses that prove that they know its secret.

Any program that can reach the port may connect. So connections without a proof are short and limited in number.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
import ssl
import time
from contextlib import aclosing
from functools import partial
from typing import Any, Protocol

from service.ipc.connections import HEARTBEAT_S, LONGEST, Frames
from service.ipc.messagepack import Malformed
from service.link import protocol
from service.messages.replica_status import Address
from service.messages.wire import Encoded, Failure, ReplicaRequest, ReplicaStream
from service.tracebacks import error_for_client

_log = logging.getLogger(__name__)

#: bytes of a secret
_SECRET = 32
#: seconds in which a connection must prove itself, and the most connections that have not
_PROVEN_S, _UNPROVEN = 5.0, 64
#: seconds between two lines of the log about connections that were not proven
_LOG_INTERVAL_S = 60.0


class RequestHandler(Protocol):
    """Answers the calls."""

    async def encode(self, request: ReplicaRequest) -> Encoded | Failure:
        """The prompt of a request as token ids, and token ids as text."""

    def stream(self, request: ReplicaRequest) -> ReplicaStream:
        """The answer block by block. Closing the stream aborts the request."""


class LinkServer:
    """Listens on a free port. `start` makes it. `address`: its address and secret. `draining`: no more calls.

    `connections`: the ingresses. `unproven`: connections that have not proved to be one.
    """

    address: Address
    _listening: asyncio.Server
    _heartbeat: asyncio.Task[None]

    def __init__(self, replica: RequestHandler) -> None:
        self._replica = replica
        self.connections: set[_Connection] = set()
        self.unproven: dict[_Connection, None] = {}  # the oldest first
        self._logged_at, self._num_refused = -_LOG_INTERVAL_S, 0
        self.draining = False

    @classmethod
    async def start(cls, replica: RequestHandler, host: str, tls: ssl.SSLContext | None = None) -> LinkServer:
        """Listens on `host`, an address that the ingresses can reach. `tls`: encrypts, and checks certificates."""
        server, loop = cls(replica), asyncio.get_running_loop()
        limit_s = _PROVEN_S if tls else None
        server._listening = await loop.create_server(
            partial(_Connection, server), host, 0, ssl=tls, ssl_handshake_timeout=limit_s
        )
        port = server._listening.sockets[0].getsockname()[1]
        server.address = Address(host, port, secrets.token_hex(_SECRET))
        server._heartbeat = asyncio.create_task(server._send_heartbeats())
        return server

    @property
    def calls(self) -> int:
        return sum(len(connection.calls) for connection in self.connections)

    async def close(self, patience_s: float = 0.0) -> None:
        """Notifies all ingresses, and waits at most `patience_s` until every call has ended. Then ends the rest."""
        self.draining = True
        self._listening.close()
        for connection in list(self.unproven):
            connection.abort()
        for connection in self.connections:
            connection.send(protocol.DrainNotice())
        if calls := [task for connection in self.connections for task in connection.calls.values()]:
            await asyncio.wait(calls, timeout=patience_s)
        self._heartbeat.cancel()
        for connection in list(self.connections):
            connection.end()

    def add_unproven(self, connection: _Connection) -> None:
        """Adds a connection without a proof. The oldest makes room for it: an ingress proves itself at once."""
        if len(self.unproven) >= _UNPROVEN:
            oldest = next(iter(self.unproven))
            del self.unproven[oldest]
            oldest.refuse(f"{_UNPROVEN} others came after it")
        self.unproven[connection] = None

    def accept(self, connection: _Connection) -> None:
        del self.unproven[connection]
        self.connections.add(connection)

    def log_refusal(self, host: object, why: str) -> None:
        """A connection was not proven. The first of a minute is named in the log, the others are counted."""
        self._num_refused += 1
        if time.monotonic() >= self._logged_at + _LOG_INTERVAL_S:
            _log.warning(
                "%d connections, the last of %s, did not prove to be ingresses: %s", self._num_refused, host, why
            )
            self._logged_at, self._num_refused = time.monotonic(), 0

    def remove(self, connection: _Connection) -> None:
        self.unproven.pop(connection, None)
        self.connections.discard(connection)

    async def _send_heartbeats(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            for connection in self.connections:
                connection.send(protocol.ReplicaAlive())

    async def answer(self, connection: _Connection, call: protocol.ReplicaCall) -> None:
        number, request = call.number, call.request

        def send(item: Any) -> None:
            connection.send(protocol.ReplicaItem(number, item, self.calls - len(connection.calls)))

        try:
            request = call.whole_request()
            if call.method == "stream":
                async with aclosing(self._replica.stream(request)) as items:
                    async for item in items:
                        send(item)
            else:
                send(await self._replica.encode(request))
        except Exception as error:  # noqa: BLE001 - a bug: the log gets its place, the client the request's id
            send(Failure(error_for_client(error, request.origin.request_id)))
        connection.send(protocol.CallEnd(number))


class _Connection(Frames):
    """The link of one ingress. `calls`: its calls in progress, by their numbers."""

    def __init__(self, server: LinkServer) -> None:
        super().__init__(protocol.AT_REPLICA, longest=protocol.NONCE)
        self._server = server
        self._expected: bytes | None = None  # the ingress's proof
        self._deadline: asyncio.TimerHandle | None = None  # None once it is proven
        self.calls: dict[int, asyncio.Task[None]] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._server.add_unproven(self)
        reason = f"no proof came within {_PROVEN_S:g} s"
        self._deadline = asyncio.get_running_loop().call_later(_PROVEN_S, self.refuse, reason)

    def received(self, content: bytes) -> None:
        if self._deadline is not None:
            self._prove(content)
            return
        for message in self.codec.decode(content):
            if isinstance(message, protocol.ReplicaCall):
                self._begin(message)
            elif task := self.calls.get(message.number):
                task.cancel()

    def _prove(self, content: bytes) -> None:
        secret = self._server.address.secret
        if self._expected is None:
            if len(content) != protocol.NONCE:
                raise Malformed("it does not begin as a link does")
            nonce = protocol.make_nonce()
            self._expected = protocol.make_proof(secret, "ingress", content, nonce)
            self.write(nonce + protocol.make_proof(secret, "replica", content, nonce))
        elif not hmac.compare_digest(content, self._expected):
            raise Malformed("it does not know the secret")
        else:
            self._server.accept(self)
            self.longest = LONGEST
            self._cancel_deadline()

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def refuse(self, why: str) -> None:
        if self._deadline is None:
            super().refuse(why)
            return
        self._server.log_refusal(self._transport.get_extra_info("peername"), why)
        self.abort()

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002 - the signature is asyncio's
        self._cancel_deadline()
        for task in self.calls.values():
            task.cancel()
        self._server.remove(self)

    def end(self) -> None:
        self._flush()
        self._transport.close()

    def _begin(self, call: protocol.ReplicaCall) -> None:
        if self._server.draining:
            self.send(protocol.CallEnd(call.number, refused=True))
            return
        task = asyncio.get_running_loop().create_task(self._server.answer(self, call))
        self.calls[call.number] = task
        task.add_done_callback(lambda _: self.calls.pop(call.number, None))
