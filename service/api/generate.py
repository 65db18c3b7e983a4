"""POST /generate, whole or block by block."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from fastapi import APIRouter, Request, Response
from msgspec.structs import replace

from service.api.answers import (
    BlockFrame,
    ChoiceIndex,
    Done,
    GenerateAnswer,
    GenerateAnswers,
    StepFrame,
    met_of,
    milliseconds,
    stats_of,
    traced,
    usage_of,
)
from service.api.driver import IngressServices, ResponseBuilder, locked, respond
from service.api.errors import error_json
from service.api.openapi import DECODING, STORY, errors, model_docs, route_docs
from service.api.parse import (
    OutputParams,
    Prompt,
    RequestContext,
    check_model,
    constraint_of,
    further_request,
    parse_generate,
    to_replica_request,
)
from service.api.protocol import GenerateBody
from service.api.streams import frame
from service.errors import MrpServeError
from service.messages.wire import Answer, Chunk, Ending, Progress, ReplicaRequest, TraceStep, mode_of
from service.quality.schema import knobs_of

_ERRORS: Final = (401, 404, 413, 422, 429, 503, 504)
EXAMPLES: Final[Mapping[str, Any]] = {
    "text": {"summary": "Continue a text", "value": {"prompt": "def fibonacci(n):", "max_new_tokens": 64}},
    "chat": {"summary": "Answer a message, streamed", "value": {"messages": [STORY], "stream": True}},
    "speculative": {
        "summary": "MRP drafts, the backbone verifies: static's output in less time",
        "value": {"messages": [STORY], "mode": "speculative", "mrp_steps": "auto", "stop": ["\n\n"]},
    },
    "quality": {
        "summary": "The fastest mode within a quality: lossless, balanced or fast",
        "value": {"messages": [STORY], "quality": "lossless"},
    },
    "remask": {
        "summary": "Parallel decoding; tokens that MRP doubts are masked again",
        "value": {"prompt": "1 + 1 =", "mode": "remask", "threshold": 0.5, "return_trace": True},
    },
    "schema": {
        "summary": "JSON that fits a schema",
        "value": {
            "prompt": "Tom is 5 years old.",
            "response_format": {
                "type": "json_schema",
                "json_schema": {"schema": {"properties": {"age": {"type": "integer"}}, "required": ["age"]}},
            },
        },
    },
    "choice": {"summary": "One of several texts", "value": {"prompt": "1 + 1 = 2?", "choice": ["yes", "no"]}},
    "sampled": {
        "summary": "A repeatable sample",
        "value": {"prompt": "Once", "temperature": 0.8, "top_p": 0.95, "seed": 17},
    },
}

_STREAM: Final = (
    "Server-sent events: `block` frames (BlockFrame), then `done` (Done) or `error` (ErrorAnswer). "
    "With `stream_steps` also `step` frames (StepFrame), each before the frame of its block. "
    "With `n` above 1, the frames of all answers come as they are ready, with the number of their `choice`. "
    "A comment line every 15 s keeps proxies awake."
)


class GenerateBuilder(ResponseBuilder):
    """Builds the answers to one POST /generate."""

    def __init__(self, requests: Sequence[ReplicaRequest], model: str, *, stream: bool) -> None:
        super().__init__(requests, stream=stream)
        self._model = model

    async def full_response(self, answers: Sequence[Answer]) -> GenerateAnswer | GenerateAnswers:
        choices = [self._answer(index, answer) for index, answer in enumerate(answers)]
        if len(choices) == 1:
            return choices[0]
        completion = sum(answer.ending.completion_tokens for answer in answers)
        return {"choices": choices, "usage": usage_of(answers[0].ending.prompt_tokens, completion)}

    def _answer(self, index: int, answer: Answer) -> GenerateAnswer:
        done, record = self._done(index, answer.ending), traced(self.requests[index], answer)
        return {"text": answer.text, "token_ids": answer.token_ids, **done, **record}

    def step(self, index: int, progress: Progress) -> bytes:
        return b"".join(frame("step", step) for step in _steps(progress, self._choice(index)))

    def chunk(self, index: int, chunk: Chunk) -> bytes:
        body: BlockFrame = {
            "index": chunk.index,
            "text": chunk.text,
            "token_ids": chunk.token_ids,
            "stats": stats_of(chunk.stats),
            **traced(self.requests[index], chunk),
            **self._choice(index),
        }
        return frame("block", body)

    def end(self, index: int, ending: Ending) -> bytes:
        return frame("done", self._done(index, ending))

    def error(self, error: MrpServeError, request_id: str) -> bytes:
        return frame("error", error_json(error, request_id))

    def _choice(self, index: int) -> ChoiceIndex:
        return {"choice": index} if len(self.requests) > 1 else {}

    def _done(self, index: int, ending: Ending) -> Done:
        request = self.requests[index]
        mode = mode_of(request, ending.stats)
        return {
            "id": f"gen-{request.request_id}",
            "model": self._model,
            "finish_reason": ending.finish_reason,
            "mode": mode.name,
            "knobs": knobs_of(mode),
            "seed": request.sampling.seed,
            "usage": usage_of(ending.prompt_tokens, ending.completion_tokens),
            "stats": stats_of(ending.stats),
            **self._choice(index),
            **met_of(request, ending),
        }


def parse_generate_request(body: Mapping[str, Any], context: RequestContext) -> GenerateBuilder:
    """Parses a body of POST /generate. Raises InvalidRequest or UnknownModel with the reason."""
    request = parse_generate(body, context.card.default_mode, GenerateBody)
    if request.model is not None:
        check_model(request.model, context.card)
    first = to_replica_request(
        request,
        context,
        Prompt(
            text=request.prompt,
            token_ids=tuple(request.prompt_token_ids) if request.prompt_token_ids else None,
            messages=tuple(message.model_dump() for message in request.messages) if request.messages else None,
            constraint=constraint_of(request),
        ),
        OutputParams(request.limit, shorten=False, stream=request.stream),
    )
    first = replace(first, stream_steps=request.stream_steps)
    requests = [first, *(further_request(first, index) for index in range(1, request.n))]
    return GenerateBuilder(requests, context.card.name, stream=request.stream)


def generate_router(upstream: IngressServices) -> APIRouter:
    """The route, to be mounted at the root."""
    router = APIRouter(tags=[DECODING], route_class=locked(upstream.authorize))
    summary = "Continue a prompt, at once or block by block"
    docs = route_docs(summary, GenerateAnswer | GenerateAnswers, errors(*_ERRORS), _STREAM)

    @router.post("/generate", **docs, **model_docs(GenerateBody, examples=EXAMPLES))
    async def generate(request: Request) -> Response:
        return await respond(parse_generate_request, upstream, request)

    return router


def _steps(progress: Progress, choice: ChoiceIndex) -> list[StepFrame]:
    """One frame for each step."""
    return [
        {
            **step,
            "step": index,
            "texts": {token: progress.texts[token] for token in _tokens(step)},
            "prompt_positions": progress.prompt_positions,
            "ms": milliseconds(progress.total_s),
            **choice,
        }
        for index, step in enumerate(progress.steps, progress.first)
    ]


def _tokens(step: TraceStep) -> set[int]:
    return {token for _, token, _ in (*step["revealed"], *step["drafted"])}
