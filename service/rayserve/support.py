"""Checks whether `prefix_router.py`, which uses private parts of Ray Serve, works with the installed Ray.

If the parts have changed, the service routes by load (`app.py`). A router that fits only partly could lose requests.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import fields
from types import FunctionType
from typing import Any

import ray

#: methods of Serve's router that PrefixRouter calls and does not override: name -> parameters
_CALLED = {
    "_record_queue_wait_time": ("self", "pending_request"),
    "_remove_pending_request_from_indices": ("self", "pending_request"),
}
#: the attribute of Serve's router that PrefixRouter reads; the router's constructor sets it
_QUEUE = "_pending_requests_to_fulfill"
#: the fields of a request that PrefixRouter reads
_READ = {"args", "metadata", "future", "routing_context"}


def misfit() -> str | None:
    """Why requests cannot be routed by prefix with this Ray. None if they can."""
    try:
        from ray.serve.request_router import PendingRequest

        from service.rayserve.prefix_router import PrefixRouter

        different = [*_differences(PrefixRouter), *sorted(_READ - {field.name for field in fields(PendingRequest)})]
    except (ImportError, AttributeError, TypeError) as error:
        different = [str(error)]
    return f"Ray {ray.__version__} has changed: {', '.join(different)}" if different else None


def _differences(router: type) -> Iterator[str]:
    """The methods and attributes of Serve's router that differ from what our router expects."""
    [below] = router.__bases__
    ours = {name: _parameters(method) for name, method in vars(router).items() if isinstance(method, FunctionType)}
    for name, parameters in (ours | _CALLED).items():
        if _parameters(getattr(below, name, None)) != parameters:
            yield f"{below.__name__}.{name}"
    makers = [maker for one in below.__mro__ if isinstance(maker := vars(one).get("__init__"), FunctionType)]
    if not any(_QUEUE in maker.__code__.co_names for maker in makers):
        yield f"{below.__name__}.{_QUEUE}"


def _parameters(method: Any) -> tuple[str, ...]:
    return tuple(inspect.signature(method).parameters) if method is not None else ()
