"""The limit of one client that takes its answer too slowly. `guarded.py` has one for each connection."""

from __future__ import annotations

import asyncio
import socket
import struct
from asyncio import Transport

#: a client to which bytes wait takes at least LEAST_BYTES in LIMIT_S seconds
LIMIT_S = 60.0
LEAST_BYTES = 16 * 1024
_RESET = struct.pack("ii", 1, 0)


class WriteLimit:
    """The limit of one connection. asyncio's calls about a protocol's buffer are passed on to `paused` and `resumed`.

    `paused`: the buffer is full, so nothing is added to it until `resumed`.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport, self._left = transport, 0
        self._timer: asyncio.TimerHandle | None = None

    def paused(self) -> None:
        """Begins to watch the client."""
        self._left = self._transport.get_write_buffer_size()
        self._timer = asyncio.get_running_loop().call_later(LIMIT_S, self._look)

    def closing(self) -> None:
        """The connection closes once its client has taken the rest. Watches that, too."""
        if self._timer is None and self._transport.get_write_buffer_size():
            self.paused()

    def resumed(self) -> None:
        """Ends the watch."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        if self._left - self._transport.get_write_buffer_size() < LEAST_BYTES:
            # A reset: else the kernel keeps megabytes for a client that is not there to read them.
            self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            self._transport.abort()
        else:
            self.paused()
