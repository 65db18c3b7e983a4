"""The middleware of Serve's proxies, which copy a request's id unchanged and end a response whose ingress is lost."""

from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.api.errors import error_writer, problem
from service.api.streams import MEDIA_TYPE, frame
from service.errors import IngressLost
from service.gateway.http.guarded import guard_uvicorn
from service.gateway.http.middleware import REQUEST_ID, with_clean_request_id

#: seconds after which a client may try again
_RETRY_S = 1.0


def proxy_middleware() -> list[Middleware]:
    """The middleware of Serve's proxies, from the innermost to the outermost.

    A proxy calls this before it makes its server, which then has our protocol.
    """
    guard_uvicorn()
    return [Middleware(with_lost_ingress), Middleware(with_clean_request_id)]


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
