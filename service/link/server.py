"""The replica's end of links: it answers the calls of all ingresses that know its secret."""

from __future__ import annotations

import asyncio
import hmac
import secrets
from contextlib import aclosing
from typing import Any, Protocol

from service.errors import MrpServeError
from service.frames import Frames, messages_of
from service.link.messages import Alive, Call, Cancel, End, Item, Leaving, Refused
from service.silence import BEAT_S
from service.telemetry.faults import unexpected_error
from service.wire import Address, Answer, Failure, Items, Work

_SECRET_LENGTH = 64


class Replica(Protocol):
    """What answers the calls."""

    async def complete(self, work: Work) -> Answer | Failure:
        """The whole answer. Cancelling the call aborts the request."""

    async def count(self, work: Work) -> int | Failure:
        """The number of tokens of a work's prompt."""

    def stream(self, work: Work) -> Items:
        """The answer block by block. Closing the stream aborts the request."""


class LinkServer:
    """Listens on a free port. `start` makes it. `address`: where, and its secret. `leaving`: it takes no more calls."""

    address: Address
    _listening: asyncio.Server
    _beating: asyncio.Task[None]

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._connections: set[_Connection] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self.leaving = False

    @classmethod
    async def start(cls, replica: Replica, host: str) -> LinkServer:
        """Listens on `host`, an address that the ingresses can reach."""
        server = cls(replica)
        server._listening = await asyncio.get_running_loop().create_server(lambda: _Connection(server), host, 0)
        port = server._listening.sockets[0].getsockname()[1]
        server.address = Address(host, port, secrets.token_hex(_SECRET_LENGTH // 2))
        server._beating = asyncio.create_task(server._beat())
        return server

    @property
    def calls(self) -> int:
        """The number of calls in progress."""
        return sum(len(connection.calls) for connection in self._connections)

    async def close(self, patience_s: float = 0.0) -> None:
        """Tells all ingresses, and waits at most `patience_s` until every call has ended. Then it ends the others."""
        self.leaving = True
        self._listening.close()
        for connection in self._connections:
            connection.send(Leaving())
        try:
            async with asyncio.timeout(patience_s):
                await self._idle.wait()
        except TimeoutError:
            pass
        self._beating.cancel()
        for connection in list(self._connections):
            connection.end()

    def knows(self, secret: bytes) -> bool:
        """Whether this is its secret."""
        return hmac.compare_digest(secret, self.address.secret.encode())

    def joined(self, connection: _Connection) -> None:
        """An ingress has shown the secret."""
        self._connections.add(connection)
        connection.send(Alive())

    def left(self, connection: _Connection) -> None:
        """An ingress is gone."""
        self._connections.discard(connection)
        self.changed()

    def changed(self) -> None:
        """A call has begun or ended."""
        (self._idle.clear if self.calls else self._idle.set)()

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(BEAT_S)
            for connection in self._connections:
                connection.send(Alive())

    async def answer(self, connection: _Connection, call: Call) -> None:
        """Does the work of one call."""
        number, work = call.number, call.work

        def send(item: Any) -> None:
            connection.send(Item(number, item, self.calls - len(connection.calls)))

        try:
            if call.method == "stream":
                async with aclosing(self._replica.stream(work)) as items:
                    async for item in items:
                        send(item)
            else:
                send(await getattr(self._replica, call.method)(work))
        except MrpServeError as error:
            send(Failure(error))
        except Exception as error:  # noqa: BLE001 - a bug: the log gets its place, the client the request's id
            send(Failure(unexpected_error(error, work.origin.request_id)))
        connection.send(End(number))


class _Connection(Frames):
    """The link of one ingress. `calls`: its calls in progress, by their numbers."""

    def __init__(self, server: LinkServer) -> None:
        super().__init__()
        self._server = server
        self._trusted = False
        self.calls: dict[int, asyncio.Task[None]] = {}

    def announced(self, length: int) -> None:
        """Ends a connection that sends more than a secret before it is trusted."""
        if not self._trusted and length > _SECRET_LENGTH:
            self._transport.abort()
            self._buffer.clear()

    def received(self, content: bytes) -> None:
        """Checks the secret, then begins or cancels calls."""
        if not self._trusted:
            self._trusted = self._server.knows(content)
            if not self._trusted:
                self._transport.abort()
                self._buffer.clear()
                return
            self._server.joined(self)
            return
        for message in messages_of(content):
            if isinstance(message, Call):
                self._begin(message)
            elif isinstance(message, Cancel) and (task := self.calls.get(message.number)):
                task.cancel()

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002 - the signature is asyncio's
        """Cancels all calls of the ingress."""
        for task in self.calls.values():
            task.cancel()
        self._server.left(self)

    def end(self) -> None:
        """Closes the connection after what was sent."""
        self._flush()
        self._transport.close()

    def _begin(self, call: Call) -> None:
        if self._server.leaving:
            self.send(Refused(call.number))
            return
        task = asyncio.get_running_loop().create_task(self._server.answer(self, call))
        self.calls[call.number] = task
        task.add_done_callback(lambda _: self._ended(call.number))
        self._server.changed()

    def _ended(self, number: int) -> None:
        self.calls.pop(number, None)
        self._server.changed()
