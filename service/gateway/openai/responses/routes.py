"""POST /v1/responses, whole or as OpenAI's typed events."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable
from typing import Any, Final

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from service.errors import MrpServeError
from service.gateway.http.errors import renamed
from service.gateway.http.openapi import errors
from service.gateway.http.responses import JsonAnswer
from service.gateway.http.routes import answering
from service.gateway.http.shared_schema import asked
from service.gateway.http.sse import frame
from service.gateway.http.streams import FrameStream, Item, first_of
from service.gateway.http.validation import parse_json
from service.gateway.openai.errors import openai_error, openai_problem
from service.gateway.openai.responses import shapes
from service.gateway.openai.responses.answers import Writer
from service.gateway.openai.responses.convert import plan_response
from service.gateway.openai.responses.fields import FIELDS
from service.gateway.openai.responses.output import Json
from service.gateway.openai.responses.schemas import ResponsesRequest
from service.gateway.openai.schemas import MAX_TEMPERATURE
from service.gateway.openai.shapes import OpenAiErrorAnswer
from service.gateway.upstream import Upstream
from service.telemetry.faults import unexpected_error
from service.wire import Chunk, Ending

_NAMES: Final = {"max_new_tokens": "max_output_tokens"}
_ANSWER: Final = (
    "OpenAI's object, with `stats`. With `stream`, OpenAI's events, from `response.created` to `response.completed`, "
    "`response.incomplete` or `error`. Nothing is stored."
)


def responses_router(upstream: Upstream) -> APIRouter:
    """The route, to be mounted at the root."""
    router = APIRouter(prefix="/v1", route_class=answering(upstream.authorize, upstream.count, openai_problem))
    router.post("/responses", **_docs())(_Route(upstream).responses)
    return router


class _Route:
    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream

    async def responses(self, request: Request) -> Response:
        upstream, request_id = self._upstream, request.scope["request_id"]
        body, card = parse_json(await request.body()), await upstream.card()
        plan = plan_response(body, card, upstream.timeout_limit_s)
        writer = Writer(plan)
        try:
            admitted = await upstream.admit(request, [plan.work])
            [work] = admitted.works
            if not plan.request.stream:
                return JsonAnswer(writer.response(await upstream.complete(work, admitted.charge)))
            items = upstream.stream(work, admitted.charge)
            first = await first_of(items)
        except MrpServeError as error:
            raise renamed(error, _NAMES) from error

        def failed(error: Exception) -> Json:
            ours = error if isinstance(error, MrpServeError) else unexpected_error(error, request_id)
            upstream.count(ours)
            return writer.failed(openai_error(renamed(ours, _NAMES), request_id))

        return FrameStream(_frames(first, items, writer, failed), items)


async def _frames(
    first: Item, items: AsyncGenerator[Item], writer: Writer, failed: Callable[[Exception], Json]
) -> AsyncGenerator[bytes]:
    try:
        yield _written(writer.opening())
        yield _written(_events(first, writer))
        async for item in items:
            yield _written(_events(item, writer))
    except Exception as error:  # noqa: BLE001 - the status is sent, so only an event can report the error
        yield _written([failed(error)])


def _events(item: Item, writer: Writer) -> Iterable[Json]:
    if isinstance(item, Ending):
        return writer.closing(item)
    return writer.piece(item) if isinstance(item, Chunk) else ()  # this route asks for no steps


def _written(events: Iterable[Json]) -> bytes:
    return b"".join(frame(event["type"], event) for event in events)


def _docs() -> dict[str, Any]:
    example = {"model": "demo", "input": "12+5=", "max_output_tokens": 64}
    stream = {"text/event-stream": {"schema": {"description": _ANSWER}}}
    answer = {200: {"model": shapes.Response, "description": _ANSWER, "content": stream}}
    return {
        "summary": "Responses as OpenAI's client asks for them, without state",
        "response_class": JSONResponse,
        "responses": {**answer, **errors(401, 404, 413, 422, 429, 503, 504, model=OpenAiErrorAnswer)},
        **asked(ResponsesRequest, FIELDS.passed, MAX_TEMPERATURE, example),
    }
