"""Whether `prefix_router.py` fits the installed Ray: it builds on parts of Serve that are not public.

Where they are others, the service routes by load (`app.py`): a router that fits by half would lose requests.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import fields
from types import FunctionType
from typing import Any

import ray

#: what PrefixRouter calls of Serve's router and does not override: name -> parameters
_CALLED = {
    "_record_queue_wait_time": ("self", "pending_request"),
    "_remove_pending_request_from_indices": ("self", "pending_request"),
}
#: what it reads of Serve's router, made when that is made
_QUEUE = "_pending_requests_to_fulfill"
#: what it reads of a request
_READ = {"args", "metadata", "future", "routing_context"}


def misfit() -> str | None:
    """What keeps requests from being routed by prefix with this Ray; None where nothing does."""
    try:
        from ray.serve.request_router import PendingRequest

        from service.rayserve.prefix_router import PrefixRouter

        different = [*_differences(PrefixRouter), *sorted(_READ - {field.name for field in fields(PendingRequest)})]
    except (ImportError, AttributeError, TypeError) as error:
        different = [str(error)]
    return f"Ray {ray.__version__} has changed: {', '.join(different)}" if different else None


def _differences(router: type) -> Iterator[str]:
    """Methods and attributes of Serve's router that are not what ours takes them for."""
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
