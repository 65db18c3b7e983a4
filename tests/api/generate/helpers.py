"""Bodies to send, streams to read, engines that wait, clients that leave, replicas that say what a test wants."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families
from pydantic import BaseModel
from starlette.types import ASGIApp

from service.api.answers import ErrorAnswer
from service.api.backend import Backend, LocalBackend
from service.api.generator import Generator
from service.api.ingress import Ingress
from service.api.wire import Answer, Chunk, Ending, Failure, ModelCard, Snapshot, Status, Work
from service.engine import BlockEvent
from service.settings import Settings
from tests.tiny import GOLDEN

GENERATE = "/generate"
CASES: list[dict[str, Any]] = json.loads((GOLDEN / "sdar-mrp-random-a" / "expected.json").read_text("utf-8"))
KNOBS = ("tokens_per_step", "threshold", "mrp_steps")
PROMPT = CASES[0]["prompt_token_ids"]
MASK, EOS, UNKNOWN, VOCABULARY, LENGTH = 509, 510, 511, 512, 2048


def body(**fields: Any) -> dict[str, Any]:
    """A small request; None takes a field out."""
    whole = {"prompt_token_ids": PROMPT, "max_new_tokens": 16, "mode": "static"} | fields
    return {name: value for name, value in whole.items() if value is not None}


def golden_body(case: Mapping[str, Any], **fields: Any) -> dict[str, Any]:
    names = ("mode", "prompt_token_ids", "max_new_tokens", "temperature", *KNOBS)
    return {name: case[name] for name in names if name in case} | fields


def words(tokens: Sequence[int]) -> str:
    """Their text in the golden tokenizer."""
    return " ".join(f"w{token}" for token in tokens)


# --- asking ----------------------------------------------------------------------------------------


def client(app: ASGIApp, **headers: str) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://test", headers=headers)


def over(backend: Backend | Generator, **settings: Any) -> httpx.AsyncClient:
    """A client of a fresh ingress over a backend."""
    backend = LocalBackend(backend) if isinstance(backend, Generator) else backend
    return client(Ingress("i0", Settings(**settings), backend).app(answers_request_id=True))


async def ask(http: httpx.AsyncClient, request: Mapping[str, Any]) -> dict[str, Any]:
    response = await http.post(GENERATE, json=request)
    assert response.status_code == 200, response.text
    assert response.headers["x-request-id"]
    answer: dict[str, Any] = response.json()
    return answer


def problem(response: httpx.Response, status: int) -> dict[str, Any]:
    """The error of an answer that has the one shape of all errors."""
    assert response.status_code == status, response.text
    assert_shape(ErrorAnswer, response.json())
    detail: dict[str, Any] = response.json()["error"]
    assert detail["request_id"] == response.headers["x-request-id"]
    return detail


async def refused(http: httpx.AsyncClient, request: Mapping[str, Any], status: int = 422) -> dict[str, Any]:
    """The error, which is the same whether a stream was asked for or not."""
    detail = problem(await http.post(GENERATE, json=request), status)
    streamed = problem(await http.post(GENERATE, json=dict(request) | {"stream": True}), status)
    assert detail | {"request_id": ""} == streamed | {"request_id": ""}
    return detail


async def frames(http: httpx.AsyncClient, request: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """The events of a stream: their names and values."""
    response = await http.post(GENERATE, json=dict(request) | {"stream": True})
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["cache-control"] == "no-store"
    return read_frames(response.content)


def read_frames(content: bytes) -> list[tuple[str, dict[str, Any]]]:
    *events, rest = content.decode("utf-8", "strict").split("\n\n")
    assert rest == ""
    read = []
    for event in events:
        name, data = event.split("\n")
        read.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return read


async def streamed(http: httpx.AsyncClient, request: Mapping[str, Any]) -> dict[str, Any]:
    """The answer put together from a stream."""
    *blocks, (last, done) = await frames(http, request)
    assert last == "done"
    assert {name for name, _ in blocks} <= {"block"}
    answer = dict(done)
    answer["text"] = "".join(block["text"] for _, block in blocks)
    answer["token_ids"] = [token for _, block in blocks for token in block["token_ids"]]
    if request.get("return_trace"):
        answer["trace"] = [step for _, block in blocks for step in block["trace"]]
    return answer


def essence(answer: Mapping[str, Any]) -> dict[str, Any]:
    """An answer less what differs between two runs of one request: its id and its times."""
    stats = {name: value for name, value in answer["stats"].items() if not name.endswith("_ms")}
    return {**answer, "id": "", "stats": stats}


async def page(http: httpx.AsyncClient) -> Callable[..., float]:
    """GET /metrics as page(name, **labels): the sum of a metric's samples that have these labels."""
    response = await http.get("/metrics")
    assert response.status_code == 200
    families = text_string_to_metric_families(response.text)
    samples = [sample for family in families for sample in family.samples]

    def read(name: str, **labels: str) -> float:
        return sum(one.value for one in samples if one.name == name and labels.items() <= one.labels.items())

    return read


def assert_shape(model: type[BaseModel], value: object) -> None:
    """The value is of the model, and has no field besides."""
    checked = model.model_validate(value).model_dump_json(exclude_unset=True)
    assert json.loads(checked) == value


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.002)


# --- engines that do as a test says ----------------------------------------------------------------


class Held:
    """Holds a generator's engine before its first step until it is released."""

    def __init__(self, generator: Generator) -> None:
        self.worker = generator._worker
        self.released, self._entered = threading.Event(), threading.Event()
        engine = self.worker._engine
        self._step = engine.step
        engine.step = self._hold  # type: ignore[method-assign]

    async def holds(self) -> None:
        """Waits until a request is in the engine, which waits here."""
        await eventually(self._entered.is_set)

    async def queued(self, count: int) -> None:
        """Waits until as many more requests wait for the engine."""
        await eventually(lambda: len(self.worker._inbox.submitted) == count)

    def _hold(self) -> list[BlockEvent]:
        self._entered.set()
        assert self.released.wait(20)
        return self._step()


def stop_the_clock(generator: Generator, until: Callable[[int, list[BlockEvent]], bool]) -> None:
    """No time passes for the engine until a step (its number, its events) says so; then an hour does at once."""
    engine = generator._worker._engine
    real, now, steps = engine.step, 0.0, 0

    def step() -> list[BlockEvent]:
        nonlocal now, steps
        events, steps = real(), steps + 1
        if until(steps, events):
            now = 3600.0
        return events

    engine._clock = lambda: now
    engine.step = step  # type: ignore[method-assign]


# --- clients that leave ----------------------------------------------------------------------------


class Visitor:
    """One request at the level of ASGI. Its client leaves when the first block has come, or when told."""

    def __init__(self, request: Mapping[str, Any], version: str = "2.3", stays: bool = False) -> None:
        self.body, self.version, self.stays = json.dumps(request).encode(), version, stays
        self.sent = b""
        self.got_block, self._asked = asyncio.Event(), False

    async def visit(self, app: ASGIApp) -> None:
        scope = {"type": "http", "method": "POST", "path": GENERATE, "headers": [], "query_string": b""}
        await app(scope | {"root_path": "", "asgi": {"spec_version": self.version}}, self._receive, self._send)

    async def _receive(self) -> dict[str, Any]:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": self.body, "more_body": False}
        await (asyncio.Event() if self.stays else self.got_block).wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if self.got_block.is_set() and not self.stays and self.version >= "2.4":
            raise OSError("the client has left")
        self.sent += message.get("body", b"")
        if b"event: block" in self.sent:
            self.got_block.set()


# --- replicas that say what a test wants -----------------------------------------------------------

CARD = ModelCard(
    name="scripted",
    block_size=4,
    vocab_size=64,
    max_model_len=256,
    mrp=None,
    modes=("static", "dynamic"),
    default_mode="static",
    defaults={"static": {"tokens_per_step": 1}, "dynamic": {"threshold": 0.9}},
    chat=True,
)
STATS: dict[str, Any] = {
    "tokens_per_forward": 1.0,
    "tokens_per_forward_total": 1.0,
    "forwards": {"prefill": 0, "denoise": 1, "verify": 0, "commit": 0, "mrp": 0},
    "drafts_proposed": 0,
    "drafts_accepted": 0,
    "remasked": 0,
    "queue_ms": 0.0,
    "first_block_ms": 1.0,
    "total_ms": 1.0,
}


class Scripted:
    """A backend whose every request gets the same items, an exception raised; `down`: what its card raises."""

    def __init__(self, *items: Chunk | Ending | Failure | Exception, down: Exception | None = None) -> None:
        self.items, self.down = items, down
        self.works: list[Work] = []

    async def card(self) -> ModelCard:
        if self.down is not None:
            raise self.down
        return CARD

    async def stream(self, work: Work) -> AsyncGenerator[Chunk | Ending | Failure]:
        self.works.append(work)
        for item in self.items:
            if isinstance(item, Exception):
                raise item
            yield item

    async def complete(self, work: Work) -> Answer | Failure:
        async for item in self.stream(work):
            if isinstance(item, Failure):
                return item
            if isinstance(item, Ending):
                return Answer("a", (1,), item)
        raise AssertionError("the script has no ending")

    async def statuses(self) -> list[Status]:
        if self.down is not None:
            raise self.down
        return [Status("r0", None, CARD)]

    async def snapshots(self, own: Snapshot) -> tuple[list[Snapshot], list[Snapshot]]:
        return [own], []
