"""Messages between rank 0 and one that follows it, over a pair of sockets that no other process has.

The end of either process closes its socket, which the other one notices at once. Messages are pickled: both processes
are one program, and one has started the other.
"""

from __future__ import annotations

import pickle
import socket
import struct
import threading
from contextlib import suppress
from typing import Any

_LENGTH = struct.Struct("!Q")


class Channel:
    """One end. `EOFError` says that the other end is closed."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._sending = threading.Lock()

    def send(self, message: object) -> None:
        """Sends a message. It may wait until the other side has read earlier ones. Any thread may call it."""
        content = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
        try:
            with self._sending:
                self._end.sendall(_LENGTH.pack(len(content)) + content)
        except OSError as error:
            raise EOFError from error

    def receive(self) -> Any:
        """Waits for a message."""
        (length,) = _LENGTH.unpack(self._exactly(_LENGTH.size))
        return pickle.loads(self._exactly(length))  # noqa: S301 - from the other half of this program

    def close(self) -> None:
        """Closes this end. Whoever waits at either end gets an EOFError."""
        with suppress(OSError):  # the other end is closed
            self._end.shutdown(socket.SHUT_RDWR)
        self._end.close()

    def _exactly(self, length: int) -> bytes:
        found = bytearray()
        while len(found) < length:
            try:
                piece = self._end.recv(length - len(found))
            except OSError as error:
                raise EOFError from error
            if not piece:
                raise EOFError
            found += piece
        return bytes(found)
