"""The parts that the routes of administrators share: their key, their bodies, and changes that a replica has missed."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar

from fastapi import APIRouter, HTTPException, Request
from pydantic import BaseModel, ConfigDict, ValidationError

from service.admission.keys import KeyRing
from service.api.driver import locked
from service.api.errors import explain
from service.api.openapi import OPERATION
from service.api.parse import parse_json
from service.errors import InvalidRequest, MrpServeError, NotReady, nearest
from service.gateway.http.bodies import Bodies
from service.gateway.http.middleware import sent_key
from service.messages.replica_status import ControlResult
from service.tracebacks import without_message

_log = logging.getLogger(__name__)


class AdminBody(BaseModel):
    """The base of the bodies of these routes."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


_Body = TypeVar("_Body", bound=AdminBody)


class CatchUp:
    """Repeats a change in the background, for replicas that have missed it. `change`: gives it to all replicas.

    `name`: the change, for the log. `pause_s`: seconds between two attempts.
    """

    def __init__(self, name: str, change: Callable[[], Awaitable[Sequence[ControlResult]]], pause_s: float) -> None:
        self._name, self._change, self.pause_s = name, change, pause_s
        self._task: asyncio.Task[None] | None = None
        self._due = 0.0

    def begin(self) -> None:
        """Begins an attempt, unless one is under way or has just been made."""
        if self._task is None and time.monotonic() >= self._due:
            self._task = asyncio.create_task(self._attempt())

    async def _attempt(self) -> None:
        try:
            for result in await self._change():
                if (error := result.error) is not None:
                    _log.warning("a replica cannot take %s: %s: %s", self._name, result.replica, error.message)
        except Exception as error:  # noqa: BLE001 - the next poll of the replicas leads to the next attempt
            _log.warning("the replicas cannot take %s", self._name, extra={"exception": without_message(error)})
        finally:
            self._task, self._due = None, time.monotonic() + self.pause_s


def failures_of(results: Sequence[ControlResult]) -> dict[str, MrpServeError]:
    """The replicas that failed, with their errors. NotReady if there is no result at all."""
    if not results:
        raise NotReady("no replica responds", retry_after=5.0)
    return {result.replica: result.error for result in results if result.error is not None}


def in_words(failures: Mapping[str, MrpServeError]) -> str:
    """The failed replicas with their errors, for a message."""
    return "; ".join(f"{replica}: {error.message}" for replica, error in failures.items())


def admin_router(keys: KeyRing, bodies: Bodies, prefix: str = "/admin") -> APIRouter:
    """A router without routes. They will need one of these keys, before their bodies are read."""

    @contextmanager
    def authorize(request: Request) -> Iterator[Request]:
        if request.scope.get("raw_path", b"").find(b"%") >= 0:
            raise HTTPException(404)  # a proxy that keeps others from /admin may not know another spelling
        key = keys.find(sent_key(request.headers), "key of `admin_keys`")
        with bodies.coming(f"admin/{key.name}", request.receive) as receive:
            yield Request(request.scope, receive)

    return APIRouter(prefix=prefix, tags=[OPERATION], route_class=locked(authorize))


async def read_body(request: Request, kind: type[_Body]) -> _Body:
    """The typed body of a route, which may be empty if no field is required. InvalidRequest names the wrong field."""
    body = parse_json(await request.body() or b"{}")
    for name in body:
        if name not in kind.model_fields:
            raise InvalidRequest(f"{name[:80]!r} is not a field; {nearest(name, kind.model_fields)}", param=name)
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        raise explain(error.errors(include_url=False), kind) from None
