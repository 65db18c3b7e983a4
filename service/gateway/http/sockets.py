"""The socket on which an ingress listens, and its connections. No server is imported: the program checks both early."""

import resource
import socket
from typing import Final

#: connections that wait until they are accepted
BACKLOG = 2048
#: connections of a process, and files that it may open besides
MAX_CONNECTIONS: Final = 16384
_OTHER_FILES: Final = 256


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


def max_connections() -> int:
    """The connections that the limit of open files allows, at most MAX_CONNECTIONS."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_CONNECTIONS if files == resource.RLIM_INFINITY else max(16, min(MAX_CONNECTIONS, files - _OTHER_FILES))
