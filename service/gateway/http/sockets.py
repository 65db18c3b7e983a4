"""The socket on which an ingress listens. It imports no server, so the program tries an address at once."""

from __future__ import annotations

import socket

#: connections that wait until they are accepted
BACKLOG = 2048


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens on an address of IPv4 or IPv6. OSError if the address is taken.

    It names its protocol: asyncio sends small packets at once (TCP_NODELAY) on such sockets only. Else the body of an
    answer waits some 40 ms for the client to acknowledge the head.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
        bound.listen(BACKLOG)
    except OSError:
        bound.close()
        raise
    return bound
