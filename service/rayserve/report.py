"""Reports from the router to the ingress how the replica of a request was chosen.

Serve makes the router from a pickled class and calls it on its own tasks. The router and the ingress share only the
context of the call, so the listener is a context variable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from service.routing.affinity import How

Listener = Callable[[How], None]

_listener: ContextVar[Listener | None] = ContextVar("mrp_routed", default=None)


@contextmanager
def reporting_to(listener: Listener) -> Iterator[None]:
    """Calls `listener` for every request of this block, once its replica is chosen."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def report(how: How) -> None:
    """Calls the listener of the current request, if it has one."""
    if listener := _listener.get():
        listener(how)
