"""The documentation of every route: bodies, answers and examples. `docs_page.py` shows it at /docs.

`validation.py` parses the bodies, not FastAPI, so this module adds their schema.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from fastapi import FastAPI
from fastapi.responses import JSONResponse
from fastapi.telemetry import TelemetryConfig
from pydantic import BaseModel

from service.gateway.http.answers import BlockFrame, Done, ErrorAnswer, GenerateAnswer, StepFrame
from service.gateway.http.docs_page import docs_routes
from service.gateway.http.schemas import EXAMPLES, GENERATE, GenerateDefault, GenerateQuality

#: the headings of the page
DECODING, OPENAI, ANTHROPIC, OPERATION = "Decoding", "OpenAI's API", "Anthropic's API", "Operation"

_REF = "#/components/schemas/{model}"
_ERRORS: Mapping[int, str] = {
    400: "a field is not allowed; the message names the value received and the allowed values",
    401: "an API key is required and missing or wrong",
    404: "the model is not the served one",
    409: "newer weights answer; the message names their version",
    413: "the body is over the limit",
    422: "a field is not allowed; the message names the value received and the allowed values",
    429: "the queue is full (queue_full) or the key's limit is reached (rate_limited); see Retry-After",
    503: "the server is loading or draining, or has no replica; see Retry-After",
    504: "the time limit passed before the first token was decoded",
}
_STREAM = (
    "Server-sent events: `block` frames (BlockFrame), then `done` (Done) or `error` (ErrorAnswer). "
    "With `stream_steps` also `step` frames (StepFrame), each before the frame of its block. "
    "A comment line every 15 s keeps proxies awake."
)


def documented(telemetry: TelemetryConfig, *error_models: type[BaseModel]) -> FastAPI:
    """An application without routes, whose documentation includes the request bodies.

    `error_models`: the models that routes give to `errors`, besides ErrorAnswer.
    """
    app = FastAPI(
        title="mrp-serve",
        description="Block-diffusion language models with Multi-token Residual Prediction.",
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        telemetry=telemetry,
    )
    app.router.routes.extend(docs_routes(app.title, lambda: _with_models(app.openapi(), error_models)))
    return app


def _with_models(schema: dict[str, Any], error_models: Sequence[type[BaseModel]]) -> dict[str, Any]:
    """FastAPI's schema with the models that FastAPI does not know."""
    models = schema.setdefault("components", {}).setdefault("schemas", {})
    models.update(GENERATE.json_schema(ref_template=_REF)["$defs"])
    unknown: list[type[BaseModel]] = [BlockFrame, StepFrame, Done, GenerateDefault, GenerateQuality, ErrorAnswer]
    for model in [*unknown, *error_models]:
        made = model.model_json_schema(ref_template=_REF)
        models.update(made.pop("$defs", {}) | {model.__name__: made})
    return schema


@cache
def generate_docs() -> dict[str, Any]:
    """FastAPI's arguments for POST /generate. The result is cached and must not be changed."""
    body = GENERATE.json_schema(ref_template=_REF)
    body.pop("$defs")
    body["oneOf"] += [{"$ref": _REF.format(model=model.__name__)} for model in (GenerateDefault, GenerateQuality)]
    content = {"application/json": {"schema": body, "examples": dict(EXAMPLES)}}
    answer = {"model": GenerateAnswer, "content": {"text/event-stream": {"schema": {"description": _STREAM}}}}
    return {
        "tags": [DECODING],
        "summary": "Continue a prompt, at once or block by block",
        "response_class": JSONResponse,
        "responses": {200: answer, **errors(401, 404, 413, 422, 429, 503, 504)},
        "openapi_extra": {"requestBody": {"required": True, "content": content}},
    }


def errors(*statuses: int, model: type[BaseModel] = ErrorAnswer) -> dict[int | str, dict[str, Any]]:
    """The error answers of a route.

    They name their model, and `documented` adds it. FastAPI would build the given model again for each of them.
    """
    content = {"application/json": {"schema": {"$ref": _REF.format(model=model.__name__)}}}
    return {status: {"description": _ERRORS[status], "content": content} for status in statuses}
