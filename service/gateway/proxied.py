"""The middleware of Serve's proxies, which copy a request's id unchanged and end a response whose ingress is lost."""

from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.api.errors import error_writer, problem
from service.api.streams import MEDIA_TYPE, frame
from service.errors import IngressLost
from service.gateway.http.guarded import guard_uvicorn
from service.gateway.http.middleware import REQUEST_ID, CleanRequestId

#: seconds after which a client may try again
_RETRY_S = 1.0


def proxy_middleware() -> list[Middleware]:
    """The middleware of Serve's proxies, from the innermost to the outermost.

    A proxy calls this before it makes its server, which then has our protocol.
    """
    guard_uvicorn()
    return [Middleware(LostIngress), Middleware(CleanRequestId)]


class LostIngress:
    """Ends a response that its ingress has not ended: a status that was not sent is 503, a stream ends with `error`."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        response = _Response(send)
        await self._app(scope, receive, response.send)
        if response.ended:
            return None
        error = IngressLost("the ingress was lost before the answer was complete", retry_after=_RETRY_S)
        request_id, write = Headers(scope=scope).get(REQUEST_ID, ""), error_writer(scope["path"])
        if not response.started:
            return await problem(error, request_id, {REQUEST_ID: request_id}, write)(scope, receive, send)
        if response.is_stream:
            last = frame("error", write(error, request_id))
            await send({"type": "http.response.body", "body": last, "more_body": False})
        return None


class _Response:
    """A response on its way, and its state."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.started = self.ended = self.is_stream = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.started = True
            self.is_stream = Headers(raw=message["headers"]).get("content-type", "").startswith(MEDIA_TYPE)
        elif message["type"] == "http.response.body":
            self.ended = not message.get("more_body", False)
        await self._send(message)
