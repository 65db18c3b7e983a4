"""The spans of one request in a replica. They are made from the engine's times when the request has ended."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from opentelemetry import trace

from service.engine import BlockEvent, Stats
from service.messages.wire import ReplicaRequest, mode_of
from service.telemetry.tracing import Tracing, context_of

_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Timeline:
    """The times of a request in a replica. `waited_s`: seconds from the arrival at the ingress to the engine."""

    waited_s: float
    prompt_tokens: int
    events: list[BlockEvent] = field(default_factory=list)


def trace_request(tracing: Tracing, replica: str, request: ReplicaRequest, timeline: Timeline) -> None:
    """Makes the spans of one request in a replica, as children of the ingress's span."""
    ended, events = time.time(), timeline.events
    arrived = ended - request.arrived.waited_s()
    start = arrived + timeline.waited_s
    last = events[-1].stats if events else Stats()
    context = context_of(dict(request.origin.trace))
    common = {
        "mrp.replica": replica,
        "mrp.mode": mode_of(request, last).name,
        "mrp.request_id": request.origin.request_id,
    }
    request_span = tracing.tracer.start_span("generate", context, attributes=common, start_time=_ns(arrived))
    inside = trace.set_span_in_context(request_span)

    def span(name: str, begin: float, end: float, attributes: Mapping[str, Any]) -> None:
        made = tracing.tracer.start_span(name, inside, attributes=attributes, start_time=_ns(begin))
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
    request_span.end(_ns(start + last.total_s if events else ended))


def _block(event: BlockEvent, before: Stats) -> dict[str, Any]:
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
