"""The way of a request through a route of any API: parse, admit, decode, and build the answer or the stream.

An error before the first item, or before `STATUS_S`, has its own HTTP status. A later error is an event. However the
response ends, its requests to replicas end with it.
"""

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from inspect import signature
from typing import Any, ClassVar, Final, Protocol, TypeVar

from fastapi import Request, Response
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from pydantic_core import to_json

from service.admission.charge import TokenCharge
from service.api.errors import CountError, renamed
from service.api.parse import RequestContext, check_records, parse_json
from service.api.streams import STATUS_S, FrameStream, all_of, first_of, merged
from service.errors import DeadlineExceeded, MrpServeError
from service.messages.replica_status import ModelCard
from service.messages.wire import Answer, AnswerStream, Chunk, Encoded, Ending, Progress, ReplicaRequest
from service.tracebacks import error_for_client

_Handler = Callable[[Request], Coroutine[Any, Any, Response]]
#: makes the request of a body. Raises InvalidRequest or UnknownModel
Parse = Callable[[Mapping[str, Any], RequestContext], "ResponseBuilder"]

#: the bytes of a body that is read at once: that takes a few ms at most
_SHORT: Final = 8 * 1024

_T = TypeVar("_T")


class Pipeline(Protocol):
    """Answers requests that are admitted. Raises MrpServeError."""

    async def complete(self, request: ReplicaRequest, charge: TokenCharge) -> Answer: ...

    def stream(self, request: ReplicaRequest, charge: TokenCharge) -> AnswerStream: ...

    async def encode(self, request: ReplicaRequest, charge: TokenCharge) -> Encoded: ...


class IngressServices(Protocol):
    """The ingress, as the routes of an API see it."""

    @property
    def pipeline(self) -> Pipeline: ...

    def authorize(self, request: Request) -> AbstractContextManager[Request]:
        """Raises Unauthorized without a valid API key. Within the context, the request that it gives is answered."""

    async def card(self) -> ModelCard: ...

    async def context(self, request: Request) -> RequestContext: ...

    async def admit(self, request: Request, requests: Sequence[ReplicaRequest]) -> TokenCharge: ...

    def count_rejected(self, error: MrpServeError) -> None: ...

    async def aside(self, work: Callable[[], _T]) -> _T:
        """The result of work that would hold up the event loop."""


class ResponseBuilder(ABC):
    """A validated request, and the response to it: the whole answer or the bytes of a stream's events.

    `requests`: one for each answer that replicas give. `index`: the request that an item answers. `step`, `chunk` and
    `end` give the events of an item, `error` the last event of a stream that fails.
    """

    #: name of a field in this service -> its name in the API
    CLIENT_NAMES: ClassVar[Mapping[str, str]] = {}

    def __init__(self, requests: Sequence[ReplicaRequest], *, stream: bool = False) -> None:
        self.requests, self.stream = requests, stream

    @abstractmethod
    async def full_response(self, answers: Sequence[Answer]) -> Mapping[str, Any]:
        """The whole answer. `answers`: one for each request, in order."""

    def start(self, index: int, first: Progress | Chunk | Ending) -> bytes:  # noqa: ARG002
        """The events before the first item of a request."""
        return b""

    def step(self, index: int, progress: Progress) -> bytes:  # noqa: ARG002
        return b""

    def chunk(self, index: int, chunk: Chunk) -> bytes:
        raise NotImplementedError

    def end(self, index: int, ending: Ending) -> bytes:
        raise NotImplementedError

    def finish(self) -> bytes:
        """The events after all requests."""
        return b""

    def error(self, error: MrpServeError, request_id: str) -> bytes:
        raise NotImplementedError

    def with_client_names(self, error: MrpServeError, index: int | None) -> MrpServeError:  # noqa: ARG002
        """The error with the API's names of fields. `index`: the request at fault, None for all."""
        return renamed(error, self.CLIENT_NAMES) if self.CLIENT_NAMES else error

    def client_error(self, error: MrpServeError, index: int | None = None) -> MrpServeError:
        """The error as the client gets it. Of several answers, it says that the others may have been decoded."""
        renamed, count = self.with_client_names(error, index), len(self.requests)
        if count == 1 or not isinstance(error, DeadlineExceeded):
            return renamed
        return DeadlineExceeded(
            f"{count} answers were asked for, and one failed: {renamed.message}", param=renamed.param
        )

    @contextmanager
    def client_errors(self, index: int | None = None) -> Iterator[None]:
        try:
            yield
        except MrpServeError as error:
            if (renamed := self.client_error(error, index)) is error:
                raise
            raise renamed from error


class JsonAnswer(JSONResponse):
    """Written by pydantic's core in less than half of the time of Python's own encoder. NaN is null."""

    def render(self, content: Any) -> bytes:
        return to_json(content, inf_nan_mode="null")


async def parsed(
    parse: Callable[[Mapping[str, Any], RequestContext], _T], upstream: IngressServices, request: Request
) -> tuple[_T, RequestContext]:
    """The body as `parse` reads it, and the context that it was given. A long one is read beside the event loop."""
    content = await request.body()
    body, context = parse_json(content), await upstream.context(request)
    if len(content) <= _SHORT:
        return parse(body, context), context
    return await upstream.aside(partial(parse, body, context)), context


async def respond(parse: Parse, upstream: IngressServices, request: Request) -> Response:
    """The response to a request of an API's route. Raises MrpServeError before the status is sent."""
    builder, context = await parsed(parse, upstream, request)
    with builder.client_errors():
        check_records(builder.requests)
        charge = await upstream.admit(request, builder.requests)
    if not builder.stream:

        async def complete(index: int, replica_request: ReplicaRequest) -> Answer:
            with builder.client_errors(index):
                return await upstream.pipeline.complete(replica_request, charge)

        answers = await all_of(
            [complete(index, replica_request) for index, replica_request in enumerate(builder.requests)]
        )
        context.ignored.add_all(answers)
        return JsonAnswer(await builder.full_response(answers), headers=context.ignored.headers)
    frames = StreamFrames(builder, upstream.count_rejected, request.scope["request_id"])
    streams = [upstream.pipeline.stream(replica_request, charge) for replica_request in builder.requests]
    items: AsyncGenerator[Any]
    events: Callable[[Any], bytes]
    if len(streams) == 1:
        items, events = streams[0], partial(frames.events, 0)
    else:
        items, events = merged(streams), lambda pair: frames.events(*pair)
    with builder.client_errors():
        first = await first_of(items, STATUS_S)
    if first.done():
        item = first.result()
        context.ignored.add_all([item[1] if isinstance(item, tuple) else item])
    return FrameStream(frames.written(first, items, events), first, items, context.ignored.headers)


@dataclass(frozen=True, slots=True)
class StreamFrames:
    """Writes the events of one stream."""

    builder: ResponseBuilder
    count: CountError
    request_id: str
    started: set[int] = field(default_factory=set)  # the requests that have events

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
            if last := self.builder.finish():
                yield last
        except Exception as error:  # noqa: BLE001
            failure = error_for_client(error, self.request_id)
            self.count(failure)
            yield self.builder.error(self.builder.client_error(failure), self.request_id)

    def events(self, index: int, item: Progress | Chunk | Ending) -> bytes:
        builder, start = self.builder, b""
        if index not in self.started:
            self.started.add(index)
            start = builder.start(index, item)
        if isinstance(item, Chunk):
            return start + builder.chunk(index, item)
        return start + (builder.end(index, item) if isinstance(item, Ending) else builder.step(index, item))


def locked(authorize: Callable[[Request], AbstractContextManager[Request]]) -> type[APIRoute]:
    """A class of routes that need an API key. The application answers their errors.

    An endpoint whose only parameter is the request gets it at once: FastAPI's search for parameters and dependencies
    is a tenth of the ingress's time for a request.
    """

    class Locked(APIRoute):
        """Authorizes a request before its endpoint gets it."""

        def get_route_handler(self) -> _Handler:
            direct = list(signature(self.endpoint).parameters) == ["request"]
            handle: _Handler = self.endpoint if direct else super().get_route_handler()

            async def authorized(request: Request) -> Response:
                with authorize(request) as allowed:
                    return await handle(allowed)

            return authorized

    return Locked
