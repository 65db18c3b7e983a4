"""Classes of routes behind an API key.

FastAPI documents a route and finds it. A request of an endpoint that takes nothing but the request goes there at once:
FastAPI's search for parameters and dependencies is a tenth of the ingress's time for it.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager
from inspect import signature
from typing import Any

from fastapi import Request
from fastapi.responses import Response
from fastapi.routing import APIRoute

from service.errors import MrpServeError
from service.gateway.http.errors import CountError

#: raises Unauthorized for a request without a valid API key. The request is answered within the context
Authorize = Callable[[Request], AbstractContextManager[None]]
_Handler = Callable[[Request], Coroutine[Any, Any, Response]]


def locked(authorize: Authorize) -> type[APIRoute]:
    """A class of routes that need an API key. The application answers their errors."""

    class Locked(APIRoute):
        """Authorizes a request before its endpoint gets it."""

        def get_route_handler(self) -> _Handler:
            """The endpoint itself, or FastAPI's handler if the endpoint has parameters."""
            direct = list(signature(self.endpoint).parameters) == ["request"]
            handle: _Handler = self.endpoint if direct else super().get_route_handler()

            async def authorized(request: Request) -> Response:
                with authorize(request):
                    return await handle(request)

            return authorized

    return Locked


def answering(
    authorize: Authorize, count: CountError, answer: Callable[[MrpServeError, str], Response]
) -> type[APIRoute]:
    """A class of routes that need an API key, and that count and answer their errors.

    `answer`: makes the response of an error and the id of its request. The application handles other errors.
    """

    class Answering(locked(authorize)):  # type: ignore[misc]  # a class made here
        """Answers every MrpServeError itself."""

        def get_route_handler(self) -> _Handler:
            """The handler with its errors caught."""
            handle: _Handler = super().get_route_handler()

            async def caught(request: Request) -> Response:
                try:
                    return await handle(request)
                except MrpServeError as error:
                    if request.method == "POST":
                        count(error)
                    return answer(error, request.scope["request_id"])

            return caught

    return Answering
