"""The attributes of an ingress's spans. FastAPI makes the span of a request and reads `traceparent`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi.telemetry import TelemetryConfig
from msgspec.structs import asdict
from opentelemetry import trace

from service.telemetry.tracing import Tracing
from service.wire import ReplicaRequest


def telemetry(tracing: Tracing | None) -> TelemetryConfig:
    """FastAPI's telemetry: one span per request if tracing is on; no metrics, and no logs (they quote requests)."""
    off: TelemetryConfig = {"metrics": False, "logs": False, "operation_spans": False, "auto_configure": False}
    return {**off, "tracing": tracing is not None, "tracer_provider": tracing.provider if tracing else None}


def describe_request(request: ReplicaRequest, model: str) -> None:
    """Adds the request to the current span, in OpenTelemetry's names for generative AI."""
    asked = {
        "gen_ai.operation.name": "chat" if request.messages is not None else "text_completion",
        "gen_ai.provider.name": "mrp-serve",
        "gen_ai.request.model": model,
        "gen_ai.request.max_tokens": request.max_new_tokens,
        "gen_ai.request.temperature": request.sampling.temperature,
        "gen_ai.request.top_p": request.sampling.top_p,
        "gen_ai.request.seed": request.sampling.seed,
        "mrp.request_id": request.origin.request_id,
    }
    knobs = {f"mrp.{name}": value for name, value in asdict(request.params).items()}
    trace.get_current_span().set_attributes(asked | knobs)


def describe_answer(answer: Mapping[str, Any], model: str) -> None:
    """Adds the answer to the current span. `answer` has the fields of the request log's line."""
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
