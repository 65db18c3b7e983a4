"""OpenTelemetry in one process, if the setting `otlp_endpoint` names a collector.

A request's context travels to the replica in `ReplicaRequest.origin`. No span holds a prompt or an answer. The SDK
reads its own environment variables (`OTEL_…`) and has a thread of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from service.errors import SettingsError
from service.settings.settings import Settings

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter

_PROPAGATOR = TraceContextTextMapPropagator()


class Tracing:
    """Makes the spans of one process and sends them to `exporter`, in batches."""

    def __init__(self, exporter: SpanExporter) -> None:
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        named = Resource.create({"service.name": "mrp-serve"}).merge(OTELResourceDetector().detect())
        self.provider: TracerProvider = TracerProvider(resource=named)
        self.provider.add_span_processor(BatchSpanProcessor(exporter))
        self.tracer = self.provider.get_tracer("mrp-serve")

    def close(self) -> None:
        self.provider.shutdown()


def start_tracing(settings: Settings) -> Tracing | None:
    """The tracing of this process, None if it is not configured. SettingsError if a package is missing."""
    if settings.otlp_endpoint is None:
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError:
        raise SettingsError(
            f"otlp_endpoint is {settings.otlp_endpoint!r}, which needs `pip install '.[tracing]'`",
            param="otlp_endpoint",
        ) from None
    path = "/v1/traces"  # a collector's address may have it, as vLLM's does
    return Tracing(OTLPSpanExporter(settings.otlp_endpoint.rstrip("/").removesuffix(path) + path))


def current_trace() -> tuple[tuple[str, str], ...]:
    """The context of the current span as headers. Empty without a span."""
    if not trace.get_current_span().get_span_context().is_valid:
        return ()
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier)
    return tuple(carrier.items())


def traced() -> bool:
    """Whether the current request has a span that is recorded."""
    return trace.get_current_span().is_recording()


def context_of(carried: Mapping[str, str]) -> Context:
    """The context that another process's `current_trace` returned."""
    return _PROPAGATOR.extract(dict(carried))
