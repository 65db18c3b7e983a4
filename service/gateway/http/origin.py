"""Keeps pages of other sites from using a service without API keys by the browser of somebody who may reach it.

Browsers say where a request comes from; other clients say nothing and pass. A service on loopback is also asked only by
names that cannot lead elsewhere, so a page cannot make its own name an address of this machine (DNS rebinding).
"""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from service.errors import Forbidden
from service.gateway.http.errors import Count, problem

_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_OWN_SITE = frozenset({"same-origin", "none"})


class OriginGate:
    """Answers 403 to requests of other sites' pages. `host`: where the service listens, None for any name."""

    def __init__(self, app: ASGIApp, count: Count, host: str | None = None) -> None:
        self._app, self._count = app, count
        self._name = host if host is not None and is_local(host) else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one connection."""
        app = self._app
        try:
            if scope["type"] == "http":
                self._check(scope["method"], Headers(scope=scope))
        except Forbidden as error:
            self._count(error)
            app = problem(error, scope["request_id"])
        await app(scope, receive, send)

    def _check(self, method: str, headers: Headers) -> None:
        if self._name is not None and not is_local(name := _name(headers.get("host", "")), or_address=True):
            raise Forbidden(
                f"the request is for {name[:80]!r}, and without API keys this server on {self._name} answers to "
                "localhost and addresses only; set `api_keys`, or `host` to an address that others reach"
            )
        if method in _SAFE or (site := headers.get("sec-fetch-site")) in _OWN_SITE:
            return
        origin = headers.get("origin")
        if site is not None or (origin is not None and urlsplit(origin).netloc != headers.get("host")):
            raise Forbidden(
                f"the request comes from a page of another site ({(origin or site or '')[:80]!r}), which without API "
                "keys is not allowed"
            )


def _name(host: str) -> str:
    """The name or address of a `Host`, without its port."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return host


def is_local(name: str, *, or_address: bool = False) -> bool:
    """Whether a name or an address is of this machine only. `or_address`: whether any address will do."""
    if not name or name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    return or_address or address.is_loopback
