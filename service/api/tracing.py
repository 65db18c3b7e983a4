"""OpenTelemetry spans, where the setting `otlp_endpoint` names a collector; nothing at all otherwise.

FastAPI makes the span of a request in the ingress and honours a client's `traceparent`; here it gets what is
known of the answer. Its context travels in `Work.origin` to the replica, which makes the spans of the queue, the
prefill and every block when the request has ended, from the engine's own times. No span holds a prompt or an
answer. The SDK reads its own variables (`OTEL_…`); spans are sent by a thread of its own.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from fastapi.telemetry import TelemetryConfig
from opentelemetry import trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from service.api.wire import Work
from service.engine import BlockEvent, Stats
from service.errors import SettingsError
from service.settings import Settings

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter

_NS = 1_000_000_000
_PROPAGATOR = TraceContextTextMapPropagator()


@dataclass(frozen=True, slots=True)
class Timeline:
    """What became of a request in a replica: its events, and how long it took from the ingress to the engine."""

    waited_s: float
    prompt_tokens: int
    events: Sequence[BlockEvent]


class Tracing:
    """Makes the spans of one process and sends them to `exporter`, in batches."""

    def __init__(self, exporter: SpanExporter) -> None:
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        named = Resource.create({"service.name": "mrp-serve"}).merge(OTELResourceDetector().detect())
        self.provider: TracerProvider = TracerProvider(resource=named)
        self.provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self.provider.get_tracer("mrp-serve")

    def close(self) -> None:
        """Sends what has not been sent and stops."""
        self.provider.shutdown()

    def decoded(self, replica: str, work: Work, timeline: Timeline) -> None:
        """The spans of one request in a replica, as children of the ingress's."""
        ended, events = time.time(), timeline.events
        arrived = ended - work.arrived.waited_s()
        start = arrived + timeline.waited_s
        last = events[-1].stats if events else Stats()
        context = _PROPAGATOR.extract(dict(work.origin.trace))
        common = {"mrp.replica": replica, "mrp.mode": work.params.mode, "mrp.request_id": work.origin.request_id}
        whole = self._tracer.start_span("generate", context, attributes=common, start_time=_ns(arrived))
        inside = trace.set_span_in_context(whole)

        def span(name: str, begin: float, end: float, attributes: Mapping[str, Any]) -> None:
            made = self._tracer.start_span(name, inside, attributes=attributes, start_time=_ns(begin))
            made.end(_ns(max(begin, end)))

        admitted = start + last.queue_s
        span("queue", arrived, admitted, {})
        if last.prefill_s is not None:
            prefilled = start + last.prefill_s
            span("prefill", admitted, prefilled, {"gen_ai.usage.input_tokens": timeline.prompt_tokens})
        begin, before = admitted, Stats()
        for event in events:
            end = start + event.stats.total_s
            if before.first_block_s is None and last.prefill_s is not None and start + last.prefill_s < end:
                begin = start + last.prefill_s
            span("block", begin, end, _block(event, before))
            begin, before = end, event.stats
        whole.end(_ns(start + last.total_s if events else ended))


def start_tracing(settings: Settings) -> Tracing | None:
    """The tracing of this process, if the settings ask for it. SettingsError if what it needs is missing."""
    if settings.otlp_endpoint is None:
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError:
        raise SettingsError(
            f"otlp_endpoint is {settings.otlp_endpoint!r}, which needs `pip install 'mrp-serve[tracing]'`",
            param="otlp_endpoint",
        ) from None
    return Tracing(OTLPSpanExporter(f"{settings.otlp_endpoint.rstrip('/')}/v1/traces"))


def telemetry(tracing: Tracing | None) -> TelemetryConfig:
    """What FastAPI is told: a span a request, if any; no metrics, and no logs, which would quote requests."""
    off: TelemetryConfig = {"metrics": False, "logs": False, "operation_spans": False, "auto_configure": False}
    return {**off, "tracing": tracing is not None, "tracer_provider": tracing.provider if tracing else None}


def current_trace() -> tuple[tuple[str, str], ...]:
    """The context of the current span as headers; none without one."""
    if not trace.get_current_span().get_span_context().is_valid:
        return ()
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier)
    return tuple(carrier.items())


def traced() -> bool:
    """Whether the current request has a span to be described."""
    return trace.get_current_span().is_recording()


def describe_request(work: Work, model: str) -> None:
    """Tells the current span what is asked for, in OpenTelemetry's names for generative AI."""
    asked = {
        "gen_ai.operation.name": "chat" if work.messages is not None else "text_completion",
        "gen_ai.provider.name": "mrp-serve",
        "gen_ai.request.model": model,
        "gen_ai.request.max_tokens": work.max_new_tokens,
        "gen_ai.request.temperature": work.sampling.temperature,
        "gen_ai.request.top_p": work.sampling.top_p,
        "gen_ai.request.seed": work.sampling.seed,
        "mrp.request_id": work.origin.request_id,
    }
    knobs = {f"mrp.{name}": value for name, value in asdict(work.params).items()}
    trace.get_current_span().set_attributes(asked | knobs)


def describe_answer(answer: Mapping[str, Any], model: str) -> None:
    """Tells the current span what was answered; `answer` has the fields of the journal's line."""
    known = {
        "gen_ai.response.id": answer["id"],
        "gen_ai.response.model": model,
        "gen_ai.response.finish_reasons": answer["finish_reason"].split(","),
        "gen_ai.usage.input_tokens": answer["prompt_tokens"],
        "gen_ai.usage.output_tokens": answer["completion_tokens"],
        "mrp.tenant": answer["tenant"],
    }
    names = ("mode", "tokens_per_forward", "queue_ms", "first_block_ms", "total_ms")
    known |= {f"mrp.{name}": answer[name] for name in names}
    trace.get_current_span().set_attributes({name: value for name, value in known.items() if value is not None})


def _block(event: BlockEvent, before: Stats) -> dict[str, Any]:
    """What one block added to its request's statistics."""
    now, then = event.stats.forwards, before.forwards
    attributes: dict[str, Any] = {
        "mrp.block.index": event.index,
        "mrp.block.tokens": len(event.token_ids),
        "mrp.block.forwards": now.denoise + now.verify - then.denoise - then.verify,
        "mrp.block.mrp_forwards": now.mrp - then.mrp,
        "mrp.block.drafts_proposed": event.stats.drafts_proposed - before.drafts_proposed,
        "mrp.block.drafts_accepted": event.stats.drafts_accepted - before.drafts_accepted,
        "mrp.block.remasked": event.stats.remasked - before.remasked,
    }
    return attributes | ({"mrp.finish_reason": event.finish_reason} if event.finish_reason else {})


def _ns(seconds: float) -> int:
    return int(seconds * _NS)
