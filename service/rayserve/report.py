"""How a request found its replica, told to whoever asked for it.

The router is made by Serve from a pickled class and called on tasks of its own; what it shares with the ingress is
the context of the call. Knows neither of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from service.routing.affinity import How

Listener = Callable[[How], None]

_listener: ContextVar[Listener | None] = ContextVar("mrp_routed", default=None)


@contextmanager
def told(listener: Listener) -> Iterator[None]:
    """What is asked of replicas in this block is reported to the listener once it has found one."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def report(how: How) -> None:
    """Tells the listener of the request at hand, if it has one."""
    if listener := _listener.get():
        listener(how)
