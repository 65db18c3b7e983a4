"""Spans of a request: their parents, attributes and export, and that their errors never affect a request."""

import builtins
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import pairwise
from typing import Any

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from service.errors import SettingsError
from service.gateway.deps import IngressDeps
from service.gateway.ingress import Ingress
from service.model import Checkpoint
from service.settings.settings import Settings
from service.telemetry.tracing import Tracing, start_tracing
from tests.gateway.doubles import AsgiClient
from tests.gateway.generate.helpers import GENERATE, PROMPT, ask, body, frames
from tests.gateway.helpers import client
from tests.gateway.local import LocalBackend
from tests.replicas import load_replica, local_generator

CLIENTS = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
Spans = Callable[[], list[ReadableSpan]]


class Service:
    """An ingress and a replica whose spans go to one exporter."""

    def __init__(self, settings: Settings, checkpoint: Checkpoint, exporter: SpanExporter) -> None:
        self.tracings = Tracing(exporter), Tracing(exporter)
        self.generator = local_generator("r0", checkpoint, settings, self.tracings[1])
        ingress = Ingress("i0", settings, LocalBackend(self.generator), IngressDeps(self.tracings[0]))
        self.app = ingress.app(answers_request_id=True)

    def flush(self) -> None:
        for tracing in self.tracings:
            assert tracing.provider.force_flush()

    def close(self) -> None:
        self.generator.close()
        self.tracings[0].close()


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def service(settings: Settings, checkpoint: Checkpoint, exporter: InMemorySpanExporter) -> Iterator[Service]:
    service = Service(settings, checkpoint, exporter)
    yield service
    service.close()


@pytest.fixture
def spans(service: Service, exporter: InMemorySpanExporter) -> Spans:
    def read() -> list[ReadableSpan]:
        service.flush()
        return sorted(exporter.get_finished_spans(), key=lambda span: (span.start_time, span.name))

    return read


@pytest.fixture
async def http(service: Service) -> AsyncIterator[httpx.AsyncClient]:
    async with client(service.app) as http:
        yield http


def named(spans: Sequence[ReadableSpan], name: str) -> list[ReadableSpan]:
    return [span for span in spans if span.name == name]


def only(spans: Sequence[ReadableSpan], name: str) -> ReadableSpan:
    (span,) = named(spans, name)
    return span


SERVER = f"POST {GENERATE}"


@pytest.mark.parametrize("stream", [False, True])
async def test_the_spans_are_one_tree_under_the_clients(http, spans, stream):
    http.headers["traceparent"] = CLIENTS
    await (frames if stream else ask)(http, body())
    finished = spans()
    server, whole = only(finished, SERVER), only(finished, "generate")
    assert f"{server.parent.span_id:016x}" in CLIENTS  # type: ignore[union-attr]
    assert {f"{span.context.trace_id:032x}" for span in finished} == {CLIENTS.split("-")[1]}
    assert whole.parent.span_id == server.context.span_id  # type: ignore[union-attr]
    inside = [span for span in finished if span.name in {"queue", "prefill", "block"}]
    assert {span.parent.span_id for span in inside} == {whole.context.span_id}  # type: ignore[union-attr]
    assert len(finished) == 2 + len(inside)
    assert server.kind.name == "SERVER"


async def test_a_client_that_does_not_want_a_trace_gets_none(http, spans):
    http.headers["traceparent"] = CLIENTS[:-1] + "0"
    await ask(http, body())
    assert spans() == []


async def test_the_request_is_described_in_the_names_for_generative_ai(http, spans):
    answer = await ask(http, body(mode="speculative", mrp_steps=2, seed=17))
    attributes = dict(only(spans(), SERVER).attributes or {})
    expected = {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.request.model": "golden",
        "gen_ai.request.max_tokens": 16,
        "gen_ai.request.seed": 17,
        "gen_ai.response.id": answer["id"].removeprefix("gen-"),
        "gen_ai.response.finish_reasons": (answer["finish_reason"],),
        "gen_ai.usage.input_tokens": len(PROMPT),
        "gen_ai.usage.output_tokens": answer["usage"]["completion_tokens"],
        "http.response.status_code": 200,
        "http.route": GENERATE,
        "mrp.mode": "speculative",
        "mrp.mrp_steps": 2,
        "mrp.tokens_per_forward": answer["stats"]["tokens_per_forward"],
        "mrp.queue_ms": answer["stats"]["queue_ms"],
    }
    assert {name: attributes.get(name) for name in expected} == expected


async def test_blocks_add_up_to_the_answer_and_follow_each_other(http, spans):
    answer = await ask(http, body(mode="speculative", mrp_steps=2, max_new_tokens=24))
    finished = spans()
    whole, queue, prefill, blocks = (
        only(finished, "generate"),
        only(finished, "queue"),
        only(finished, "prefill"),
        named(finished, "block"),
    )
    attributes: list[dict[str, Any]] = [dict(block.attributes or {}) for block in blocks]

    def total(name: str) -> int:
        return sum(block[f"mrp.block.{name}"] for block in attributes)

    stats = answer["stats"]
    assert [block["mrp.block.index"] for block in attributes] == list(range(len(blocks)))
    assert total("tokens") == answer["usage"]["completion_tokens"]
    assert total("forwards") == stats["forwards"]["denoise"] + stats["forwards"]["verify"]
    assert total("mrp_forwards") == stats["forwards"]["mrp"]
    assert (total("drafts_proposed"), total("drafts_accepted")) == (stats["drafts_proposed"], stats["drafts_accepted"])
    assert attributes[-1]["mrp.finish_reason"] == answer["finish_reason"]
    assert queue.start_time == whole.start_time
    assert queue.end_time == prefill.start_time
    assert all(before.end_time == after.start_time for before, after in pairwise(blocks))
    assert blocks[-1].end_time == whole.end_time
    milliseconds = (whole.end_time - whole.start_time) / 1e6  # type: ignore[operator]
    assert milliseconds == pytest.approx(stats["total_ms"], abs=0.01)


async def test_a_prompt_without_a_whole_block_has_no_prefill(http, spans):
    await ask(http, body(prompt_token_ids=[1]))
    assert named(spans(), "prefill") == []


async def test_a_client_that_left_leaves_the_spans_so_far(service, spans):
    await AsgiClient(body(max_new_tokens=1000, ignore_eos=True, stream=True)).request(service.app)
    finished = spans()
    assert named(finished, "block")
    assert only(finished, "generate").end_time


async def test_no_span_quotes_the_request(http, spans):
    await http.post(GENERATE, json={"prompt": "w1 xylophone", "max_new_tokens": 8})
    await http.post(GENERATE, json={"prompt": "xylophone", "temperature": "xylophone"})
    content = "".join(span.to_json() for span in spans())
    assert "gen_ai.usage" in content
    assert "422" in content
    assert "xylophone" not in content


class Broken(SpanExporter):
    def __init__(self) -> None:
        self.called, self.go = threading.Event(), threading.Event()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.called.set()
        self.go.wait(20)
        raise ConnectionError("no collector")


async def test_a_broken_collector_slows_and_fails_nothing(settings, checkpoint):
    exporter = Broken()
    service = Service(settings, checkpoint, exporter)
    flushing = threading.Thread(target=service.flush)
    async with client(service.app) as http:
        await ask(http, body())
        flushing.start()
        assert exporter.called.wait(20)  # the exporter hangs from here on
        for _ in range(3):
            await ask(http, body())
    exporter.go.set()
    flushing.join()
    service.close()


class Collector(HTTPServer):
    """A collector of OTLP over HTTP: keeps what it is sent."""

    def __init__(self) -> None:
        received: list[tuple[str, ExportTraceServiceRequest]] = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                content = self.rfile.read(int(self.headers["content-length"]))
                received.append((self.path, ExportTraceServiceRequest.FromString(content)))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *args: Any) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Handler)
        self.received = received


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as collector:
        thread = threading.Thread(target=collector.serve_forever)
        thread.start()
        yield collector
        collector.shutdown()
        thread.join()


async def test_spans_reach_a_collector(settings, collector, monkeypatch):
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
    there = settings.model_copy(update={"otlp_endpoint": f"http://127.0.0.1:{collector.server_port}/"})
    generator, tracing = load_replica("r0", there), start_tracing(there)
    assert tracing
    ingress = Ingress("i0", there, LocalBackend(generator), IngressDeps(tracing))
    async with client(ingress.app(answers_request_id=True)) as http:
        await ask(http, body())
    generator.close()
    tracing.close()
    assert {path for path, _ in collector.received} == {"/v1/traces"}
    resources = [resource for _, request in collector.received for resource in request.resource_spans]
    about = {pair.key: pair.value.string_value for pair in resources[0].resource.attributes}
    assert (about["service.name"], about["deployment.environment.name"]) == ("mrp-serve", "test")
    spans = [span for resource in resources for scope in resource.scope_spans for span in scope.spans]
    assert {span.name for span in spans} == {SERVER, "generate", "queue", "prefill", "block"}
    assert len({span.trace_id for span in spans}) == 1


def test_without_the_exporter_the_setting_is_refused(settings, monkeypatch):
    real = builtins.__import__

    def imported(name: str, *rest: Any) -> Any:
        if name.startswith("opentelemetry.exporter"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", imported)
    with pytest.raises(SettingsError, match=r"pip install '\.\[tracing\]'"):
        start_tracing(settings.model_copy(update={"otlp_endpoint": "http://localhost:4318"}))


def test_an_endpoint_is_an_address():
    with pytest.raises(SettingsError, match="otlp_endpoint is 'localhost:4318'"):
        Settings(otlp_endpoint="localhost:4318")
