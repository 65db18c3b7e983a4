"""Connections between two processes of this program: frames of messages, hung processes, child processes.

A frame is its length (4 bytes) and its content: messages, by a codec (`ipc/messagepack.py`) of both ends. `Frames` is
an end on an event loop: all messages of one turn travel together. `Channel` is an end for threads. Every process sends
heartbeats, by which a `HeartbeatMonitor` finds a process that is stopped.
"""

import asyncio
import gc
import logging
import os
import select
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, cast

from service.ipc.messagepack import Malformed, MessagePack, Unsendable

_log = logging.getLogger(__name__)

_LENGTH = struct.Struct("!I")
#: the bytes of the longest frame, and of the longest frame with several messages
LONGEST, _MAX_GROUP = 1 << 28, 1 << 20
#: seconds without a sign of the other side's machine after which the connection is lost
_DEAD_S = 8
_PROBES = 3
#: seconds between two messages of a process that has nothing else to say
HEARTBEAT_S = 0.5
#: seconds of silence after which a process counts as hung. Loading a library or a large tokenizer holds Python's lock
#: for less. A debugger that holds a process for five seconds ends nothing.
HEARTBEAT_TIMEOUT_S = 7.0
#: seconds between two polls of a monitor, and the longest time between two polls that counts
POLL_S = 0.25
_MAX_GAP_S = 2 * POLL_S

#: seconds after which a thread hands Python's lock to a waiting one. Python's own value is 5 ms, and an event loop that
#: passes a message on waits for the lock several times.
_SWITCH_S = 0.001
#: collections of the middle generation for a full one. Python's own value is 10: some twenty seconds of 128 requests.
_RARELY = 100


class Frames(asyncio.Protocol):
    """One end of a connection. Subclasses get every frame by `received`, and the end by `connection_lost`.

    `longest`: bytes; a longer frame, or Malformed raised by `received`, ends the connection with a line in the log.
    """

    _transport: asyncio.Transport

    def __init__(self, codec: MessagePack, longest: int = LONGEST) -> None:
        self.codec, self.longest = codec, longest
        self._buffer = bytearray()
        self._unsent: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports are of no common class
        _notice_dead_machine(transport.get_extra_info("socket"))

    def data_received(self, data: bytes) -> None:
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
        raise NotImplementedError

    def refuse(self, why: str) -> None:
        _log.warning("a connection with %s ends: %s", self._transport.get_extra_info("peername"), why)
        self.abort()

    def abort(self) -> None:
        """Ends the connection at once. Frames that are not handled yet are dropped."""
        self._buffer.clear()
        self._transport.abort()

    def write(self, content: bytes) -> None:
        self._transport.write(framed(content))

    def send(self, message: object) -> None:
        """Sends a message at the end of this turn of the loop, if the connection is open. May raise Unsendable."""
        encoded = _encoded(self.codec, message)
        if not self._unsent:
            asyncio.get_running_loop().call_soon(self._flush)
        self._unsent.append(encoded)

    def _flush(self) -> None:
        messages, self._unsent = self._unsent, []
        if messages and not self._transport.is_closing():
            self._transport.write(b"".join(framed(self.codec.content(group)) for group in _frames(messages)))


class Channel:
    """One end of a connection, for threads. EOFError: the other end is closed. `peer`: its name in the log."""

    def __init__(self, end: socket.socket, codec: MessagePack, peer: str = "another process") -> None:
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


def _encoded(codec: MessagePack, message: object) -> bytes:
    encoded = codec.encode(message)
    if len(encoded) >= LONGEST:
        raise Unsendable(f"a message has {len(encoded)} bytes, allowed are less than {LONGEST}")
    return encoded


def framed(content: bytes) -> bytes:
    """The bytes of a frame with this content."""
    return _LENGTH.pack(len(content)) + content


def _frames(messages: list[bytes]) -> Iterator[list[bytes]]:
    group, size = list[bytes](), 0
    for message in messages:
        if group and size + len(message) > _MAX_GROUP:
            yield group
            group, size = [], 0
        group.append(message)
        size += len(message)
    yield group


def _notice_dead_machine(connection: socket.socket) -> None:
    """Makes the kernel close a connection whose other machine does not answer, with and without data on the way."""
    if connection.family not in {socket.AF_INET, socket.AF_INET6}:
        return
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux
        pause = max(1, _DEAD_S // (_PROBES + 1))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, pause)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, pause)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _DEAD_S * 1000)


class HeartbeatMonitor:
    """Counts the seconds without a message at each `poll`, which comes every `POLL_S`.

    A process that was suspended itself polls late. That gap counts as at most `_MAX_GAP_S`.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._polled = clock, clock()
        self._seconds = 0.0

    def observe(self) -> None:
        self._seconds = 0.0

    def poll(self) -> float:
        now = self._clock()
        self._seconds += min(now - self._polled, _MAX_GAP_S)
        self._polled = now
        return self._seconds


def start_child(module: str, *arguments: str) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Starts `python -m module DESCRIPTOR *arguments`. Returns the process and this end of a pair of sockets.

    `TORCH_DISABLE_NATIVE_JIT`: torch compiles other kernels of its own if certain packages are installed, with other
    bits.
    """
    settings = {"TORCH_DISABLE_NATIVE_JIT": "1", "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
    parent, child = socket.socketpair()
    with child:
        process = subprocess.Popen(  # noqa: S603 - this program
            [sys.executable, "-P", "-m", module, str(child.fileno()), *arguments],
            pass_fds=[child.fileno()],
            stdin=subprocess.DEVNULL,
            env=os.environ | settings,
        )
    return process, parent


def tune_interpreter() -> None:
    """Lets an event loop respond beside an engine's thread. Called once, when the checkpoint is loaded.

    A full garbage collection holds the lock and looks at every object: 70 ms for half a million of libraries and
    checkpoint, which collections leave out from now on. The objects of requests take 8 ms, so it is rare.
    """
    sys.setswitchinterval(_SWITCH_S)
    gc.collect()
    gc.freeze()
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, _RARELY)
