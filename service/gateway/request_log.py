"""One log line for every finished request: its fields, its end and its times. The span of a request has the same.

No line holds a prompt, an answer or a key.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from fastapi.telemetry import TelemetryConfig
from msgspec.structs import asdict
from opentelemetry import trace
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.api.answers import milliseconds
from service.api.errors import LOGGED
from service.gateway.http.middleware import REQUEST_ID, request_id_of
from service.messages.wire import Ending, Origin, ReplicaRequest, mode_of
from service.telemetry.tracing import Tracing, current_trace, traced
from service.tracebacks import without_message

_log = logging.getLogger("service.requests")


@dataclass(slots=True, eq=False)
class Record:
    """The data of one request, collected while it is answered."""

    request_id: str
    scope: Scope
    tenant: str = ""  # the name of the API key, never the key
    size: int = 0  # the bytes of its body that have come
    started: float = field(default_factory=time.monotonic)
    task: asyncio.Task[Any] | None = field(default_factory=asyncio.current_task)
    requests: list[ReplicaRequest] = field(default_factory=list)
    endings: list[Ending] = field(default_factory=list)
    error: str | None = None
    status: int | None = None

    def about(self) -> dict[str, Any]:
        """The fields of a line that are known before the request ends."""
        return {
            "request_id": self.request_id,
            "method": self.scope["method"],
            "route": getattr(self.scope.get("route"), "path", None),
            "tenant": self.tenant or None,
            "bytes": self.size,
            "ms": milliseconds(time.monotonic() - self.started),
        }


_current: ContextVar[Record | None] = ContextVar("mrp_record", default=None)


def current_record() -> Record | None:
    """The record of the request that this task answers; None outside a request."""
    return _current.get()


def with_request_log(app: ASGIApp, *, answers_id: bool, in_work: set[Record] | None = None) -> ASGIApp:
    """Gives every HTTP request an id in `scope["request_id"]`, and writes its line when it has ended.

    An id that the client sent is kept. `answers_id`: whether the response carries the id, too. False under Ray Serve,
    whose proxies add it. `in_work`: has the requests that have not ended. Every response also tells browsers to believe
    its content type.
    """
    in_work = set() if in_work is None else in_work

    async def logged(scope: Scope, receive: Receive, send: Send) -> None:
        request_id = scope["request_id"] = request_id_of(scope)
        record = Record(request_id, scope)
        token = _current.set(record)
        in_work.add(record)

        async def receive_and_note() -> Message:
            message = await receive()
            record.size += len(message.get("body", b""))
            return message

        def send_and_note(message: Message) -> Awaitable[None]:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["x-content-type-options"] = "nosniff"
                if answers_id:
                    headers[REQUEST_ID] = request_id
            return send(message)

        try:
            await app(scope, receive_and_note, send_and_note)
        except Exception as error:
            if record.status is None:
                raise
            # The error is not raised again: the HTTP server would log its message, which may quote the request.
            if LOGGED not in scope:
                about = {"request_id": request_id, "exception": without_message(error)}
                _log.warning("error after the answer began", extra=about)
        finally:
            in_work.discard(record)
            _current.reset(token)
            _write(record)

    return logged


def current_origin() -> Origin:
    """The origin of requests to replicas that this task makes now."""
    record = _current.get()
    return Origin() if record is None else Origin(record.request_id, current_trace())


def note_request(request: ReplicaRequest, model: str) -> None:
    """Notes a request that gets a replica in the current record. `model`: the model's name in traces."""
    record = _current.get()
    if record is not None:
        record.requests.append(request)
        if traced():
            _describe_request(request, model)


def note_ending(ending: Ending, model: str) -> None:
    """Notes the ending of an answer in the current record."""
    record = _current.get()
    if record is not None:
        record.endings.append(ending)
        if traced():
            _describe_answer(_answers(record), model)


def _write(record: Record) -> None:
    level = logging.INFO if record.scope["method"] == "POST" else logging.DEBUG
    if not _log.isEnabledFor(level):
        return
    fields = {**record.about(), "status": record.status, "error": record.error, **_answers(record)}
    _log.log(level, "request", extra={name: value for name, value in fields.items() if value is not None})


def _answers(record: Record) -> dict[str, Any]:
    """The fields of all answers together: sums of the counts, the earliest first time and the latest last time."""
    if not record.requests:
        return {}
    request, endings = record.requests[0], record.endings
    reasons = sorted({ending.finish_reason for ending in endings})
    if len(endings) < len(record.requests) and record.error is None:
        reasons.append("abort")
    fields = {
        "id": request.request_id,
        "tenant": request.sharing.tenant or None,
        "quality": request.quality or None,
        "mode": ",".join(sorted({mode_of(request, ending.stats).name for ending in endings})) or request.mode.name,
        "answers": len(record.requests) if len(record.requests) > 1 else None,
        "finish_reason": ",".join(reasons) or None,
    }
    return fields | (_counts(endings) if endings else {})


def _counts(endings: list[Ending]) -> dict[str, Any]:
    all_stats = [ending.stats for ending in endings]
    firsts = [milliseconds(stats.first_block_s) for stats in all_stats if stats.first_block_s is not None]
    forwards = sum(stats.forwards.denoise + stats.forwards.verify for stats in all_stats)
    return {
        "prompt_tokens": sum(ending.prompt_tokens for ending in endings),
        "completion_tokens": sum(ending.completion_tokens for ending in endings),
        "tokens_per_forward": round(sum(stats.decoded_tokens for stats in all_stats) / max(1, forwards), 4),
        "queue_ms": milliseconds(min(stats.queue_s for stats in all_stats)),
        "first_block_ms": min(firsts, default=None),
        "total_ms": milliseconds(max(stats.total_s for stats in all_stats)),
    }


def telemetry(tracing: Tracing | None) -> TelemetryConfig:
    """FastAPI's telemetry: one span per request if tracing is on; no metrics, and no logs (they quote requests)."""
    off: TelemetryConfig = {"metrics": False, "logs": False, "operation_spans": False, "auto_configure": False}
    return {**off, "tracing": tracing is not None, "tracer_provider": tracing.provider if tracing else None}


def _describe_request(request: ReplicaRequest, model: str) -> None:
    """Adds the request to the current span, in OpenTelemetry's names for generative AI."""
    attributes = {
        "gen_ai.operation.name": "chat" if request.messages is not None else "text_completion",
        "gen_ai.provider.name": "mrp-serve",
        "gen_ai.request.model": model,
        "gen_ai.request.max_tokens": request.max_new_tokens,
        "gen_ai.request.temperature": request.sampling.temperature,
        "gen_ai.request.top_p": request.sampling.top_p,
        "gen_ai.request.seed": request.sampling.seed,
        "mrp.request_id": request.origin.request_id,
    }
    knobs = {f"mrp.{name}": value for name, value in asdict(request.mode).items()}
    trace.get_current_span().set_attributes(attributes | knobs)


def _describe_answer(answer: Mapping[str, Any], model: str) -> None:
    """Adds the answer to the current span. `answer` has the fields of the request log's line."""
    attributes = {
        "gen_ai.response.id": answer["id"],
        "gen_ai.response.model": model,
        "gen_ai.response.finish_reasons": answer["finish_reason"].split(","),
        "gen_ai.usage.input_tokens": answer["prompt_tokens"],
        "gen_ai.usage.output_tokens": answer["completion_tokens"],
        "mrp.tenant": answer["tenant"],
    }
    names = ("mode", "tokens_per_forward", "queue_ms", "first_block_ms", "total_ms")
    attributes |= {f"mrp.{name}": answer[name] for name in names}
    trace.get_current_span().set_attributes({name: value for name, value in attributes.items() if value is not None})
