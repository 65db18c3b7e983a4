"""Answers that wait for their clients: in this process, and in the kernel, which takes a small one whole.

A connection keeps few bytes in the kernel, and all bytes of a server together are bounded. A connection closes when its
client has taken the answer.
"""

from __future__ import annotations

import asyncio
import fcntl
import socket
import struct
import termios
from asyncio import Transport
from contextvars import Context
from typing import Any, Final

#: bytes of a connection that the kernel takes before it can send them
_UNSENT: Final = 64 * 1024
#: bytes that wait for all clients of a server together
MOST_BYTES = 64 * 1024 * 1024
#: a client to which bytes wait takes them, or at least LEAST_BYTES, in LIMIT_S seconds
LIMIT_S = 60.0
LEAST_BYTES: Final = 16 * 1024
#: seconds between two polls of the clients to which bytes wait; only whoever takes nothing for as long makes room
_POLL_S = 1.0
_RESET: Final = struct.pack("ii", 1, 0)
#: of Linux's `tcp_info`: the state, and the bytes that the client's side has received
_INFO: Final = struct.Struct("=B119xQ")
_SIZE: Final = struct.Struct("i")
_CLOSED: Final = 7


class Output:
    """A connection's transport. `since`: when its client last took bytes, or when it began to wait for the client.

    `watched`: whether `Outputs` has it.
    """

    def __init__(self, transport: Transport, outputs: Outputs) -> None:
        self._transport, self._outputs, self._write = transport, outputs, transport.write
        self._socket: socket.socket = transport.get_extra_info("socket")
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT)
        self._closing = self._lost = self.watched = False
        self.since, self._next = 0.0, 0

    def __getattr__(self, name: str) -> Any:
        """The rest of the transport."""
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        self._write(data)
        if not self.watched:
            self._outputs.watch(self)

    def is_closing(self) -> bool:
        return self._closing or self._transport.is_closing()

    def close(self) -> None:
        """Closes the connection once the client has taken all. It learns at once that no more comes."""
        if not self.is_closing() and self._transport.can_write_eof() and self.size:
            self._closing = True
            self._transport.write_eof()
            self._transport.resume_reading()  # the client's own end
        elif not self._closing:
            self._transport.close()

    def close_now(self) -> None:
        """Closes the connection once the kernel has taken all."""
        self._transport.close()

    def reset(self) -> None:
        """Ends the connection. Else the kernel keeps its bytes for a client that is not there to read them."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self._transport.abort()

    def lose(self) -> None:
        """The connection is lost. From now on its socket's number may be another connection's."""
        self._lost = True
        self._outputs.forget(self)

    @property
    def size(self) -> int:
        """The bytes that wait for the client. The end of the answer counts as one."""
        if self._lost:
            return 0
        [in_kernel] = _SIZE.unpack(fcntl.ioctl(self._socket.fileno(), termios.TIOCOUTQ, bytes(_SIZE.size)))
        return int(in_kernel + self._transport.get_write_buffer_size())

    @property
    def is_reset(self) -> bool:
        """Whether the client has left, and its system has said so."""
        return not self._lost and self._info()[0] == _CLOSED

    def is_slow(self, now: float) -> bool:
        """Whether bytes wait for the client, of which it took none lately."""
        return now - self.since >= _POLL_S and self.size > 0

    def begin(self, now: float) -> None:
        """Waits for the client from now on."""
        self.since, self._next = now, self._info()[1] + min(LEAST_BYTES, self.size)

    def poll(self, now: float) -> int:
        """The bytes that wait. Ends the connection if it closes and none do, or if its client takes too few."""
        if not (size := self.size):
            self.watched = False
            if self._closing:
                self._transport.close()
        elif self._info()[1] >= self._next:
            self.begin(now)
        elif now - self.since > LIMIT_S:
            self.reset()
        return size

    def _info(self) -> tuple[int, int]:
        """The state, and the number of bytes that the client's system has received."""
        state, received = _INFO.unpack(self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO.size))
        return state, received


class Outputs:
    """The connections of one server to whose clients bytes wait."""

    def __init__(self) -> None:
        self._outputs: set[Output] = set()
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, output: Output) -> None:
        """Called after the first bytes were written that may wait."""
        output.begin(asyncio.get_running_loop().time())
        output.watched = True
        self._outputs.add(output)
        if self._timer is None:
            self._poll_later()

    def forget(self, output: Output) -> None:
        self._outputs.discard(output)

    def _poll(self) -> None:
        """Above the limit, the clients that have taken nothing for longest lose their connections."""
        now = asyncio.get_running_loop().time()
        sizes = {output: size for output in self._outputs if (size := output.poll(now))}
        self._outputs, self._timer = set(sizes), None
        excess = sum(sizes.values()) - MOST_BYTES
        for output in sorted(filter(lambda output: output.is_slow(now), sizes), key=lambda output: output.since):
            if excess <= 0:
                break
            excess -= sizes[output]
            output.reset()
        if self._outputs:
            self._poll_later()

    def _poll_later(self) -> None:
        # A context of its own: the context of the first answer would keep its request.
        self._timer = asyncio.get_running_loop().call_later(_POLL_S, self._poll, context=Context())
