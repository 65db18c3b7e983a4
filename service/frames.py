"""Messages between two processes of this program, over a connection.

A frame is its length (4 bytes) and its content: messages, by a codec (`messagepack.py`) that both ends agree on.
`Frames` is an end on an event loop. All messages of one turn of the loop travel together, so the blocks of many
answers cost one write and one wake-up. `Channel` is an end for threads.
"""

from __future__ import annotations

import asyncio
import logging
import select
import socket
import struct
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, Protocol, cast

_log = logging.getLogger(__name__)

_LENGTH = struct.Struct("!I")
#: bytes: the longest frame; a frame with several messages is no longer than the other
LONGEST, _TOGETHER = 1 << 28, 1 << 20
#: seconds without a sign of the other side's machine after which the connection is lost
_SILENCE_S = 8
_PROBES = 3


class Malformed(Exception):
    """What came is no message. It tells the kind of the problem and no content."""


class Unsendable(Exception):
    """A message cannot be sent. Nothing was."""


class Codec(Protocol):
    """How messages become the content of frames."""

    def encode(self, message: object) -> bytes:
        """A message. It may raise Unsendable."""

    def content(self, messages: Sequence[bytes]) -> bytes:
        """The content of a frame with these messages."""

    def decode(self, content: bytes) -> list[Any]:
        """The messages of a frame. Malformed for all else."""


class Frames(asyncio.Protocol):
    """One end of a connection. Subclasses get every frame by `received`, and the end by `connection_lost`.

    `longest`: bytes; a longer frame, or Malformed raised by `received`, ends the connection with a line in the log.
    """

    _transport: asyncio.Transport

    def __init__(self, codec: Codec, longest: int = LONGEST) -> None:
        self.codec, self.longest = codec, longest
        self._buffer = bytearray()
        self._unsent: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keeps the transport. A machine that falls silent loses its connections."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports are of no common class
        _notice_silence(transport.get_extra_info("socket"))

    def data_received(self, data: bytes) -> None:
        """Splits the bytes into frames."""
        self._buffer += data
        while len(self._buffer) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack_from(self._buffer)[0]
            if end - _LENGTH.size > self.longest:
                self.refuse(f"a frame has {end - _LENGTH.size} bytes, allowed are {self.longest}")
                return
            if len(self._buffer) < end:
                return
            content = bytes(self._buffer[_LENGTH.size : end])
            del self._buffer[:end]
            try:
                self.received(content)
            except Malformed as error:
                self.refuse(str(error))

    def received(self, content: bytes) -> None:
        """A frame has come. Malformed if it may not."""
        raise NotImplementedError

    def refuse(self, why: str) -> None:
        """Ends the connection at once."""
        _log.warning("a connection with %s ends: %s", self._transport.get_extra_info("peername"), why)
        self.cut()

    def cut(self) -> None:
        """Ends the connection at once, whatever else has come."""
        self._buffer.clear()
        self._transport.abort()

    def write(self, content: bytes) -> None:
        """Sends one frame."""
        self._transport.write(framed(content))

    def send(self, message: object) -> None:
        """Sends a message at the end of this turn of the event loop. Dropped if the connection is closed by then.

        Raises Unsendable, and sends nothing then.
        """
        encoded = _encoded(self.codec, message)
        if not self._unsent:
            asyncio.get_running_loop().call_soon(self._flush)
        self._unsent.append(encoded)

    def _flush(self) -> None:
        messages, self._unsent = self._unsent, []
        if messages and not self._transport.is_closing():
            self._transport.write(b"".join(framed(self.codec.content(some)) for some in _together(messages)))


class Channel:
    """One end of a connection, for threads. EOFError: the other end is closed. `peer`: its name in the log.

    A socket that an event loop reads from, and that so does not block, can be written to.
    """

    def __init__(self, end: socket.socket, codec: Codec, peer: str = "another process") -> None:
        self._end, self._codec, self._peer = end, codec, peer
        self._sending = threading.Lock()
        self._messages: list[Any] = []

    def send(self, message: object) -> None:
        """Sends a message. It may wait until the other side has read earlier ones. Any thread may call it."""
        unsent = memoryview(framed(self._codec.content([_encoded(self._codec, message)])))
        with self._sending:
            while unsent:
                try:
                    unsent = unsent[self._end.send(unsent) :]
                except BlockingIOError:
                    select.select([], [self._end], [])
                except OSError as error:
                    raise EOFError from error

    def receive(self) -> Any:
        """Waits for a message. One thread calls it. A malformed message ends the connection with a line in the log."""
        while not self._messages:
            (length,) = _LENGTH.unpack(self._exactly(_LENGTH.size))
            try:
                self._messages = self._codec.decode(self._exactly(length))
            except Malformed as error:
                _log.warning("the connection to %s ends: %s", self._peer, error)
                self.close()
                raise EOFError from error
        return self._messages.pop(0)

    def close(self) -> None:
        """Closes this end. Who waits at either end gets an EOFError."""
        with suppress(OSError):  # the other end is closed
            self._end.shutdown(socket.SHUT_RDWR)
        self._end.close()

    def _exactly(self, length: int) -> bytes:
        content = bytearray()
        while len(content) < length:
            try:
                piece = self._end.recv(length - len(content))
            except OSError as error:
                raise EOFError from error
            if not piece:
                raise EOFError
            content += piece
        return bytes(content)


def _encoded(codec: Codec, message: object) -> bytes:
    encoded = codec.encode(message)
    if len(encoded) >= LONGEST:
        raise Unsendable(f"a message has {len(encoded)} bytes, allowed are less than {LONGEST}")
    return encoded


def framed(content: bytes) -> bytes:
    """A frame as it is sent."""
    return _LENGTH.pack(len(content)) + content


def _together(messages: list[bytes]) -> Iterator[list[bytes]]:
    """The messages of each frame, in their order."""
    some, size = list[bytes](), 0
    for message in messages:
        if some and size + len(message) > _TOGETHER:
            yield some
            some, size = [], 0
        some.append(message)
        size += len(message)
    yield some


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
