"""The way of a request through a route of any API: parse, admit, decode, and build the answer or the stream.

A route gives its `Api`. The status of a stream is sent after the first item, so an error before it has its own HTTP
status. A later error is an event. However the response ends, its requests to replicas end with it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from fastapi import Request, Response
from fastapi.responses import JSONResponse
from pydantic_core import to_json

from service.errors import MrpServeError
from service.gateway.http.parse import parse_json
from service.gateway.http.streams import FrameStream, all_of, first_of, merged
from service.gateway.upstream import Upstream
from service.tracebacks import unexpected_error
from service.wire import Answer, Chunk, Ending, ModelCard, Progress, ReplicaRequest

_Item = tuple[int, Progress | Chunk | Ending]


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedRequest:
    """A validated request. `requests`: one for each answer that replicas give."""

    requests: tuple[ReplicaRequest, ...]
    stream: bool = False


class ResponseBuilder(ABC):
    """Builds the response to one request: the whole answer or the bytes of a stream's events.

    `index`: the request that an item answers.
    """

    @abstractmethod
    async def whole(self, answers: Sequence[Answer]) -> Mapping[str, Any]:
        """The whole answer. `answers`: one for each request, in order."""

    def opening(self, index: int, first: Progress | Chunk | Ending) -> bytes:  # noqa: ARG002
        """The events before the first item of a request."""
        return b""

    def step(self, progress: Progress) -> bytes:  # noqa: ARG002
        """The events of decoding steps."""
        return b""

    def piece(self, index: int, chunk: Chunk) -> bytes:
        """The events of one block of tokens."""
        raise NotImplementedError

    def closing(self, index: int, ending: Ending) -> bytes:
        """The last events of a request."""
        raise NotImplementedError

    def end(self) -> bytes:
        """The events after all requests."""
        return b""

    def error(self, error: MrpServeError, request_id: str) -> bytes:
        """The last event of a stream that fails."""
        raise NotImplementedError


_Parsed = TypeVar("_Parsed", bound=ParsedRequest)


@dataclass(frozen=True, slots=True)
class Api(Generic[_Parsed]):
    """How a route reads requests and answers them.

    `parse(body, card, timeout_limit_s)` raises InvalidRequest or UnknownModel. `rename(error, index)` gives an error
    with the client's names of fields; `index`: the request at fault, None for all.
    """

    parse: Callable[[Mapping[str, Any], ModelCard, float], _Parsed]
    builder: Callable[[_Parsed, ModelCard], ResponseBuilder]
    rename: Callable[[MrpServeError, int | None], MrpServeError] = lambda error, _: error

    @contextmanager
    def renamed(self, index: int | None = None) -> Iterator[None]:
        """Errors within the context have the client's names of fields."""
        try:
            yield
        except MrpServeError as error:
            if (renamed := self.rename(error, index)) is error:
                raise
            raise renamed from error


class JsonAnswer(JSONResponse):
    """Written by pydantic's core in less than half of the time of Python's own encoder. NaN is null."""

    def render(self, content: Any) -> bytes:
        """The bytes of the body."""
        return to_json(content, inf_nan_mode="null")


async def respond(api: Api[_Parsed], upstream: Upstream, request: Request) -> Response:
    """The response to a request of the API's route. Raises MrpServeError before the status is sent."""
    body, card = parse_json(await request.body()), await upstream.card()
    parsed = api.parse(body, card, upstream.timeout_limit_s)
    with api.renamed():
        admitted = await upstream.admit(request, parsed.requests)
    builder = api.builder(parsed, card)
    if not parsed.stream:

        async def complete(index: int, replica_request: ReplicaRequest) -> Answer:
            with api.renamed(index):
                return await upstream.complete(replica_request, admitted.charge)

        answers = await all_of(
            [complete(index, replica_request) for index, replica_request in enumerate(admitted.requests)]
        )
        return JsonAnswer(await builder.whole(answers))
    items = merged([upstream.stream(replica_request, admitted.charge) for replica_request in admitted.requests])
    with api.renamed():
        first = await first_of(items)
    context = StreamContext(api, builder, upstream, request.scope["request_id"])
    return FrameStream(_frames(first, items, context), items)


@dataclass(frozen=True, slots=True)
class StreamContext:
    """What the events of one stream need. `opened`: the works that have events."""

    api: Api[Any]
    builder: ResponseBuilder
    upstream: Upstream
    request_id: str
    opened: set[int] = field(default_factory=set)

    def events(self, index: int, item: Progress | Chunk | Ending) -> bytes:
        """The events of one item. Empty if it has none."""
        builder, opening = self.builder, b""
        if index not in self.opened:
            self.opened.add(index)
            opening = builder.opening(index, item)
        if isinstance(item, Chunk):
            return opening + builder.piece(index, item)
        return opening + (builder.closing(index, item) if isinstance(item, Ending) else builder.step(item))

    def failed(self, error: Exception) -> bytes:
        """Counts an error that ends the stream. Returns its event."""
        known = error if isinstance(error, MrpServeError) else unexpected_error(error, self.request_id)
        self.upstream.count(known)
        return self.builder.error(self.api.rename(known, None), self.request_id)


async def _frames(first: _Item, items: AsyncGenerator[_Item], context: StreamContext) -> AsyncGenerator[bytes]:
    try:
        yield context.events(*first)
        async for index, item in items:
            if events := context.events(index, item):
                yield events
        if end := context.builder.end():
            yield end
    except Exception as error:  # noqa: BLE001 - the status is sent, so only an event can report the error
        yield context.failed(error)
