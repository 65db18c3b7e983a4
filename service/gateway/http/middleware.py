"""ASGI middleware before all routes: a request's id, key and origin, its body's limit, its client's disconnect."""

import asyncio
import ipaddress
import re
import secrets
import zlib
from collections.abc import Awaitable, Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.api.errors import CountError, error_writer, problem
from service.api.streams import MEDIA_TYPE, frame
from service.errors import BodyTooLarge, Forbidden, IngressLost, InvalidRequest, NotReady
from service.gateway.http.guarded import guard_uvicorn

REQUEST_ID = "x-request-id"
_FOREIGN = re.compile(r"[^A-Za-z0-9._:-]+")
_MAX_ID = 128
#: zlib's window for gzip, the largest one
_GZIP = 31

_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_OWN_SITE = frozenset({"same-origin", "none"})
_LEFT = "http.disconnect"
#: seconds after which a client may try again
_RETRY_S = 1.0


def sent_key(headers: Headers) -> bytes:
    """The API key of `Authorization: Bearer`, else of `X-Api-Key`, unchanged. Empty if the client sent none."""
    scheme, _, bearer = headers.get("authorization", "").encode("latin-1").partition(b" ")
    return bearer.strip(b" \t") if scheme.lower() == b"bearer" else headers.get("x-api-key", "").encode("latin-1")


def request_id_of(scope: Scope) -> str:
    """The client's request id with a bounded length and only letters, digits and `._:-`, else a new one."""
    return _FOREIGN.sub("", Headers(scope=scope).get(REQUEST_ID, ""))[:_MAX_ID] or secrets.token_hex(8)


def with_body_limit(app: ASGIApp, max_bytes: int) -> ASGIApp:
    """Raises BodyTooLarge in the route that reads a body over the limit.

    The declared Content-Length, the bytes received and the inflated bytes count, so a small body cannot fill memory.
    InvalidRequest for an encoding other than gzip, and for a body that is no gzip. FastAPI's own limit answers without
    the size that is allowed, and not in the form of the route's errors.
    """

    async def limited(scope: Scope, receive: Receive, send: Send) -> None:
        await app(scope, _LimitedBody(Headers(scope=scope), receive, max_bytes).receive, send)

    return limited


class _LimitedBody:
    def __init__(self, headers: Headers, receive: Receive, max_bytes: int) -> None:
        self._length, self._encoding = headers.get("content-length", "0"), headers.get("content-encoding", "")
        self._receive, self._max_bytes = receive, max_bytes
        self._received = self._size = 0
        self._stream = zlib.decompressobj(_GZIP)

    async def receive(self) -> Message:
        encoding = self._encoding.lower()
        if encoding not in {"", "identity", "gzip", "x-gzip"}:
            raise InvalidRequest(f"content-encoding is {self._encoding[:80]!r}, allowed are gzip and identity")
        if self._length.isdigit() and int(self._length) > self._max_bytes:
            raise BodyTooLarge(f"the body has {self._length} bytes, allowed are {self._max_bytes}")
        message = await self._receive()
        self._received += len(message.get("body", b""))
        if self._received > self._max_bytes:
            raise BodyTooLarge(f"the body has more than {self._max_bytes} bytes, allowed are {self._max_bytes}")
        if message["type"] != "http.request" or encoding in {"", "identity"}:
            return message
        more = message.get("more_body", False)
        return {**message, "body": self._inflate(message.get("body", b""), last=not more)}

    def _inflate(self, data: bytes, *, last: bool) -> bytes:
        try:
            inflated = self._stream.decompress(data, self._max_bytes - self._size + 1)
        except zlib.error:
            raise InvalidRequest("the body is not gzip, as its content-encoding says") from None
        self._size += len(inflated)
        if self._size > self._max_bytes:
            raise BodyTooLarge(
                f"the inflated body has more than {self._max_bytes} bytes, allowed are {self._max_bytes}"
            )
        if self._stream.unused_data or (last and not self._stream.eof):
            raise InvalidRequest("the body is not one whole gzip stream")
        return inflated


class OriginGate:
    """Answers 403 to requests of other sites' pages. `host`: where the service listens, None for any name.

    `allowed`: the origins whose pages may use the service; `*` is any.

    It keeps pages of other sites from using a service without API keys by the browser of somebody who may reach it.
    Browsers say where a request comes from; other clients say nothing and pass. A service on loopback is also asked
    only by names that cannot lead elsewhere, so a page cannot make its own name an address of this machine (DNS
    rebinding).
    """

    def __init__(self, app: ASGIApp, count: CountError, host: str | None = None, allowed: Collection[str] = ()) -> None:
        self._app, self._count, self._allowed = app, count, allowed
        self._name = host if host is not None and is_local(host) else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app
        try:
            self._check(scope["method"], Headers(scope=scope))
        except Forbidden as error:
            self._count(error)
            app = problem(error, scope["request_id"])
        await app(scope, receive, send)

    def _check(self, method: str, headers: Headers) -> None:
        if self._name is not None and not is_local(name := _host_name(headers.get("host", "")), or_address=True):
            raise Forbidden(
                f"the request is for {name[:80]!r}, and without API keys this server on {self._name} answers to "
                "localhost and addresses only; set `api_keys`, or `host` to an address that others reach"
            )
        if method in _SAFE or (site := headers.get("sec-fetch-site")) in _OWN_SITE:
            return
        origin = headers.get("origin")
        if origin is not None and (origin in self._allowed or "*" in self._allowed):
            return
        if site is not None or (origin is not None and urlsplit(origin).netloc != headers.get("host")):
            raise Forbidden(
                f"the request comes from a page of another site ({(origin or site or '')[:80]!r}), which without API "
                "keys is not allowed; the setting `allowed_origins` names the pages that are"
            )


def _host_name(host: str) -> str:
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


def with_head_as_get(app: ASGIApp) -> ASGIApp:
    """Answers HEAD as GET. Servers leave out the body of such an answer."""

    async def as_get(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, "method": "GET"} if scope["method"] == "HEAD" else scope, receive, send)

    return as_get


def cancelled_on_disconnect(app: ASGIApp) -> ASGIApp:
    """Cancels the application's task if the client leaves between the request's last byte and the answer's first.

    For servers that tell, but do not cancel. After the answer has begun, the response itself listens (`streams.py`).
    """

    async def watched(scope: Scope, receive: Receive, send: Send) -> None:
        watch = _DisconnectWatch(receive, send)
        try:
            await app(scope, watch.receive, watch.send)
        except asyncio.CancelledError:
            if not watch.has_cancelled():
                raise
        finally:
            watch.close()

    return watched


class _DisconnectWatch:
    """The two channels of one request. `_next`: the message after the body, which comes when the client leaves."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive, self._send = receive, send
        self._task = asyncio.current_task()
        self._next: asyncio.Task[Message] | None = None
        self._answering = self._cancelled = False

    async def receive(self) -> Message:
        """As the server's. Begins to watch after the last part of the body."""
        if self._next is not None:
            return await asyncio.shield(self._next)
        message = await self._receive()
        if message["type"] == "http.request" and not message.get("more_body"):
            self._next = asyncio.create_task(self._after_body())
        return message

    def send(self, message: Message) -> Awaitable[None]:
        self._answering = True
        return self._send(message)

    def has_cancelled(self) -> bool:
        """Whether this watch, and nobody else, has cancelled the task. The task then goes on."""
        return self._cancelled and self._task is not None and self._task.uncancel() == 0

    def close(self) -> None:
        if self._next is not None:
            self._next.cancel()

    async def _after_body(self) -> Message:
        message = await self._receive()
        if message["type"] == _LEFT and not self._answering and self._task is not None:
            self._cancelled = self._task.cancel()
        return message


# --- Serve's proxies -----------------------------------------------------------------------------------


def proxy_middleware() -> list[Middleware]:
    """The middleware of Serve's proxies, from the innermost to the outermost. A proxy copies a request's id unchanged.

    A proxy calls this before it makes its server, which then has our protocol.
    """
    guard_uvicorn()
    return [Middleware(with_lost_ingress), Middleware(with_proxy_health), Middleware(with_clean_request_id)]


def with_clean_request_id(app: ASGIApp) -> ASGIApp:
    """Cleans a client's request id, or makes one, before a server copies it into the response."""

    async def cleaned(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            MutableHeaders(scope=scope)[REQUEST_ID] = request_id_of(scope)
        await app(scope, receive, send)

    return cleaned


def with_proxy_health(app: ASGIApp) -> ASGIApp:
    """Answers /health with 503 also while the proxy itself is not healthy, by its own /-/healthz.

    A proxy that drains routes requests for some time, then its port closes. One that knows no ingress lets them wait.
    """

    async def unhealthy(scope: Scope, receive: Receive) -> NotReady | None:
        messages: list[Message] = []

        async def collect(message: Message) -> None:
            messages.append(message)

        path = f"{scope.get('root_path', '')}/-/healthz"
        await app({**scope, "method": "GET", "path": path, "raw_path": path.encode()}, receive, collect)
        if messages[0]["status"] == 200:
            return None
        reason = b"".join(message.get("body", b"") for message in messages).decode()
        return NotReady(f"Serve's proxy takes no new requests: {reason}", retry_after=_RETRY_S)

    async def checked(scope: Scope, receive: Receive, send: Send) -> None:
        answering = app
        if (
            scope["type"] == "http"
            and scope["path"].endswith(("/health", "/ping"))
            and (error := await unhealthy(scope, receive))
        ):
            request_id = Headers(scope=scope).get(REQUEST_ID, "")
            answering = problem(error, request_id, {REQUEST_ID: request_id})
        await answering(scope, receive, send)

    return checked


def with_lost_ingress(app: ASGIApp) -> ASGIApp:
    """Ends a response that its ingress has not ended: a status that was not sent is 503, a stream ends with `error`."""

    async def ended(scope: Scope, receive: Receive, send: Send) -> None:
        is_started = is_ended = is_stream = False

        async def send_and_note(message: Message) -> None:
            nonlocal is_started, is_ended, is_stream
            if message["type"] == "http.response.start":
                is_started = True
                is_stream = Headers(raw=message["headers"]).get("content-type", "").startswith(MEDIA_TYPE)
            elif message["type"] == "http.response.body":
                is_ended = not message.get("more_body", False)
            await send(message)

        await app(scope, receive, send_and_note)
        if is_ended or scope["type"] != "http":
            return
        error = IngressLost("the ingress was lost before the answer was complete", retry_after=_RETRY_S)
        request_id, write = Headers(scope=scope).get(REQUEST_ID, ""), error_writer(scope["path"])
        if not is_started:
            await problem(error, request_id, {REQUEST_ID: request_id}, write)(scope, receive, send)
        elif is_stream:
            last = frame("error", write(error, request_id))
            await send({"type": "http.response.body", "body": last, "more_body": False})

    return ended
