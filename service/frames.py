"""Messages between two processes of this program, over a connection. Both ends inherit from `Frames`.

A frame is its length (4 bytes) and its content: pickled lists of messages, and what else the ends agree on. All
messages of one turn of the event loop travel in one frame, so the blocks of many answers cost one write and one
wake-up.

Unpickling runs code of the sender's choice. A link's server unpickles only what comes after its secret
(`link/server.py`).
"""

from __future__ import annotations

import asyncio
import pickle
import socket
import struct
from collections.abc import Sequence
from typing import Any, cast

_LENGTH = struct.Struct("!I")
#: seconds without a sign of the other side's machine after which the connection is lost
_SILENCE_S = 8
_PROBES = 3


class Frames(asyncio.Protocol):
    """One end of a connection. Subclasses get every frame by `received`, and the end by `connection_lost`."""

    _transport: asyncio.Transport

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._unsent: list[Any] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keeps the transport. A machine that falls silent loses its connections."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports are of no common class
        _notice_silence(transport.get_extra_info("socket"))

    def data_received(self, data: bytes) -> None:
        """Splits the bytes into frames."""
        self._buffer += data
        while len(self._buffer) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack_from(self._buffer)[0]
            self.announced(end - _LENGTH.size)
            if len(self._buffer) < end:
                return
            content = bytes(self._buffer[_LENGTH.size : end])
            del self._buffer[:end]
            self.received(content)

    def announced(self, length: int) -> None:
        """A frame of so many bytes comes."""

    def received(self, content: bytes) -> None:
        """A frame has come."""
        raise NotImplementedError

    def write(self, content: bytes) -> None:
        """Sends one frame."""
        self._transport.write(framed(content))

    def send(self, message: object) -> None:
        """Sends a message at the end of this turn of the event loop. Dropped if the connection is closed by then."""
        if not self._unsent:
            asyncio.get_running_loop().call_soon(self._flush)
        self._unsent.append(message)

    def _flush(self) -> None:
        messages, self._unsent = self._unsent, []
        if messages and not self._transport.is_closing():
            self.write(content_of(messages))


def content_of(messages: Sequence[object]) -> bytes:
    """The content of a frame with these messages."""
    return pickle.dumps(messages, protocol=pickle.HIGHEST_PROTOCOL)


def framed(content: bytes) -> bytes:
    """A frame as it is sent."""
    return _LENGTH.pack(len(content)) + content


def messages_of(content: bytes) -> list[Any]:
    """The messages of a frame from a trusted sender."""
    messages: list[Any] = pickle.loads(content)  # noqa: S301 - from the other half of this program
    return messages


def _notice_silence(connection: socket.socket) -> None:
    """Makes the kernel close a connection whose other machine does not answer, with and without data on the way."""
    if connection.family not in {socket.AF_INET, socket.AF_INET6}:
        return
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux
        pause = max(1, _SILENCE_S // (_PROBES + 1))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, pause)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, pause)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _SILENCE_S * 1000)
