"""The way of a request through a route of any API: parse, admit, decode, and build the answer or the stream.

A route gives its `Api`. The status of a stream is sent with the first item, so an error before it has its own HTTP
status. After some seconds without an item the status is sent alone. A later error is an event. However the response
ends, its requests to replicas end with it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from inspect import signature
from typing import Any

from fastapi import Request, Response
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from pydantic_core import to_json

from service.admission.charge import TokenCharge
from service.api.errors import CountError
from service.api.parse import RequestContext, parse_json
from service.api.streams import STATUS_S, FrameStream, all_of, first_of, merged
from service.errors import DeadlineExceeded, MrpServeError
from service.messages.replica_status import ModelCard
from service.messages.wire import Answer, Answering, Chunk, Ending, Progress, ReplicaRequest
from service.tracebacks import unexpected_error

#: raises Unauthorized for a request without a valid API key. Within the context, the request that it gives is answered
Authorize = Callable[[Request], AbstractContextManager[Request]]
_Handler = Callable[[Request], Coroutine[Any, Any, Response]]


@dataclass(frozen=True, slots=True)
class Upstream:
    """The ingress, as the routes of an API see it.

    `authorize` raises for a request without a valid API key. `card`: the card of the service. `context`: the context
    of the requests to replicas that an HTTP request leads to. `admit` admits them or raises; it returns their charge.
    `complete` and `stream` answer one of them, `count_tokens` counts its tokens. `count` gets every error.
    """

    authorize: Authorize
    card: Callable[[], Awaitable[ModelCard]]
    context: Callable[[Request], Awaitable[RequestContext]]
    admit: Callable[[Request, Sequence[ReplicaRequest]], Awaitable[TokenCharge]]
    complete: Callable[[ReplicaRequest, TokenCharge], Awaitable[Answer]]
    stream: Callable[[ReplicaRequest, TokenCharge], Answering]
    count_tokens: Callable[[ReplicaRequest, TokenCharge], Awaitable[int]]
    count: CountError


class ResponseBuilder(ABC):
    """A validated request, and the response to it: the whole answer or the bytes of a stream's events.

    `requests`: one for each answer that replicas give. `index`: the request that an item answers.
    """

    def __init__(self, requests: Sequence[ReplicaRequest], *, stream: bool = False) -> None:
        self.requests, self.stream = requests, stream

    @abstractmethod
    async def whole(self, answers: Sequence[Answer]) -> Mapping[str, Any]:
        """The whole answer. `answers`: one for each request, in order."""

    def opening(self, index: int, first: Progress | Chunk | Ending) -> bytes:  # noqa: ARG002
        """The events before the first item of a request."""
        return b""

    def step(self, index: int, progress: Progress) -> bytes:  # noqa: ARG002
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


@dataclass(frozen=True, slots=True)
class Api:
    """How a route reads requests and answers them.

    `parse` raises InvalidRequest or UnknownModel. `rename(error, index)` gives an error with the client's names of
    fields; `index`: the request at fault, None for all.
    """

    parse: Callable[[Mapping[str, Any], RequestContext], ResponseBuilder]
    rename: Callable[[MrpServeError, int | None], MrpServeError] = lambda error, _: error

    def for_answers(self, count: int) -> Api:
        """For a request with several answers: an error of one of them says that the others may have been decoded."""
        if count == 1:
            return self

        def rename(error: MrpServeError, index: int | None) -> MrpServeError:
            renamed = self.rename(error, index)
            if not isinstance(error, DeadlineExceeded):
                return renamed
            return DeadlineExceeded(
                f"{count} answers were asked for, and one failed: {renamed.message}", param=renamed.param
            )

        return replace(self, rename=rename)

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


async def respond(api: Api, upstream: Upstream, request: Request) -> Response:
    """The response to a request of the API's route. Raises MrpServeError before the status is sent."""
    body, context = parse_json(await request.body()), await upstream.context(request)
    builder = api.parse(body, context)
    api = api.for_answers(len(builder.requests))
    with api.renamed():
        charge = await upstream.admit(request, builder.requests)
    if not builder.stream:

        async def complete(index: int, replica_request: ReplicaRequest) -> Answer:
            with api.renamed(index):
                return await upstream.complete(replica_request, charge)

        answers = await all_of(
            [complete(index, replica_request) for index, replica_request in enumerate(builder.requests)]
        )
        return JsonAnswer(await builder.whole(answers), headers=context.ignored.headers)
    frames = StreamFrames(api, builder, upstream.count, request.scope["request_id"])
    streams = [upstream.stream(replica_request, charge) for replica_request in builder.requests]
    items: AsyncGenerator[Any]
    events: Callable[[Any], bytes]
    if len(streams) == 1:
        items, events = streams[0], partial(frames.events, 0)
    else:
        items, events = merged(streams), lambda pair: frames.events(*pair)
    with api.renamed():
        first = await first_of(items, STATUS_S)
    return FrameStream(frames.written(first, items, events), first, items, context.ignored.headers)


@dataclass(frozen=True, slots=True)
class StreamFrames:
    """Writes the events of one stream. `opened`: the requests that have events."""

    api: Api
    builder: ResponseBuilder
    count: CountError
    request_id: str
    opened: set[int] = field(default_factory=set)

    async def written(
        self, first: Awaitable[Any], items: AsyncGenerator[Any], events: Callable[[Any], bytes]
    ) -> AsyncGenerator[bytes]:
        """The frames of all items, each as `events` writes it.

        An error is the last frame. The status is sent then, so nothing else can report it.
        """
        try:
            yield events(await first)
            async for item in items:
                if frame := events(item):
                    yield frame
            if end := self.builder.end():
                yield end
        except Exception as error:  # noqa: BLE001
            failure = error if isinstance(error, MrpServeError) else unexpected_error(error, self.request_id)
            self.count(failure)
            yield self.builder.error(self.api.rename(failure, None), self.request_id)

    def events(self, index: int, item: Progress | Chunk | Ending) -> bytes:
        """The events of one item. Empty if it has none."""
        builder, opening = self.builder, b""
        if index not in self.opened:
            self.opened.add(index)
            opening = builder.opening(index, item)
        if isinstance(item, Chunk):
            return opening + builder.piece(index, item)
        return opening + (builder.closing(index, item) if isinstance(item, Ending) else builder.step(index, item))


# --- routes behind an API key ----------------------------------------------------------------------


def locked(authorize: Authorize) -> type[APIRoute]:
    """A class of routes that need an API key. The application answers their errors.

    An endpoint whose only parameter is the request gets it at once: FastAPI's search for parameters and dependencies
    is a tenth of the ingress's time for a request.
    """

    class Locked(APIRoute):
        """Authorizes a request before its endpoint gets it."""

        def get_route_handler(self) -> _Handler:
            """The endpoint itself, or FastAPI's handler if the endpoint has parameters."""
            direct = list(signature(self.endpoint).parameters) == ["request"]
            handle: _Handler = self.endpoint if direct else super().get_route_handler()

            async def authorized(request: Request) -> Response:
                with authorize(request) as allowed:
                    return await handle(allowed)

            return authorized

    return Locked
