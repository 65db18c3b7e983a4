"""The documentation of every route: bodies, answers and examples, and the page at /docs that shows them.

The page's files come from the package fastapi-offline. Its headers allow its one inline script by its hash, and no
frame around it.
"""

import base64
import hashlib
import re
from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import JSONResponse
from fastapi.telemetry import TelemetryConfig
from pydantic import BaseModel, TypeAdapter
from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from service.api.answers import BlockFrame, Done, StepFrame
from service.api.errors import ErrorAnswer

SCHEMA: Final = "/openapi.json"
_PAGE, _FILES = "/docs", "/docs/static"
_PARAMETERS: Final = {"defaultModelsExpandDepth": 0, "validatorUrl": None}
_POLICY: Final = (
    "default-src 'none'; script-src 'self' '{script}'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

#: the headings of the page
DECODING, OPENAI, ANTHROPIC, OPERATION = "Decoding", "OpenAI's API", "Anthropic's API", "Operation"

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
API_ERRORS: Final = (400, 401, 404, 413, 429, 503, 504)
#: a message that the demo knows
STORY: Final = {"role": "user", "content": "Tom has 5 apples, gets 3, loses 2."}


def documented(telemetry: TelemetryConfig) -> FastAPI:
    """An application without routes, whose documentation includes the models of `route_docs`."""
    app = FastAPI(
        title="mrp-serve",
        description="Block-diffusion language models with Multi-token Residual Prediction. Begin with "
        "`POST /generate`, or see each step in the [playground](./).",
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        telemetry=telemetry,
    )
    app.router.routes.extend(docs_routes(app.title, lambda: _with_models(app.openapi())))
    return app


def _with_models(document: dict[str, Any]) -> dict[str, Any]:
    """The document with the definitions of its answers, and of the frames of streams, as its components."""
    schemas = [dict(_answer_schema(frame)) for frame in (BlockFrame, StepFrame, Done)]
    operations = [operation for path in document["paths"].values() for operation in path.values()]
    for response in (response for operation in operations for response in operation["responses"].values()):
        schemas += [media["schema"] for media in response.get("content", {}).values()]
    components = document.setdefault("components", {}).setdefault("schemas", {})
    for schema in schemas:
        components |= schema.pop("$defs", {})
    return document


@cache
def _answer_schema(answer: Any) -> dict[str, Any]:
    """A reference to a schema, with the definitions. The result is cached and must not be changed.

    FastAPI would build the type of an answer again for every route and application.
    """
    made = TypeAdapter(list[answer]).json_schema(ref_template="#/components/schemas/{model}")
    return {**made["items"], "$defs": made["$defs"]}


def errors(*statuses: int, model: type = ErrorAnswer) -> dict[int | str, dict[str, Any]]:
    """The error answers of a route."""
    content = {"application/json": {"schema": _answer_schema(model)}}
    return {status: {"description": _ERRORS[status], "content": content} for status in statuses}


def route_docs(summary: str, answer: Any, failed: Mapping[int | str, Any], stream: str = "") -> dict[str, Any]:
    """FastAPI's arguments for a route. `stream`: the description of its streams, if it has any."""
    content: dict[str, Any] = {"application/json": {"schema": _answer_schema(answer)}}
    if stream:
        content["text/event-stream"] = {"schema": {"description": stream}}
    response = {"description": stream or "Successful Response", "content": content}
    return {"summary": summary, "response_class": JSONResponse, "responses": {200: response, **failed}}


def model_docs(model: type[BaseModel], example: Any = None, examples: Any = None) -> dict[str, Any]:
    """FastAPI's argument for a body of this model, which FastAPI does not parse. `examples`: several with summaries."""
    body = {"schema": _body_schema(model), **({"examples": examples} if examples else {"example": example})}
    return {"openapi_extra": {"requestBody": {"required": True, "content": {"application/json": body}}}}


@cache
def _body_schema(body: type[BaseModel]) -> dict[str, Any]:
    """The schema of a body without references. It is cached and must not be changed.

    The fields of the model and its bases come before the fields that all APIs have.
    """
    made = body.model_json_schema()
    resolved: dict[str, Any] = inlined(made, made.pop("$defs", {}))
    fields = resolved["properties"]
    names = [name for kind in (body, *body.__bases__) for name in kind.__annotations__]
    resolved["properties"] = {name: fields[name] for name in (*names, *fields) if name in fields}
    return resolved


def inlined(value: Any, definitions: Mapping[str, Any]) -> Any:
    """A JSON schema whose references are replaced by the definitions."""
    if isinstance(value, list):
        return [inlined(item, definitions) for item in value]
    if not isinstance(value, dict):
        return value
    if "$ref" in value:
        return inlined(definitions[value["$ref"].rpartition("/")[2]], definitions)
    return {name: inlined(item, definitions) for name, item in value.items()}


# --- the page ---------------------------------------------------------------------------------------


def docs_routes(title: str, schema: Callable[[], dict[str, Any]]) -> list[BaseRoute]:
    """The routes. `schema` is called when it is first asked for; its bytes are kept."""

    def prefix_of(request: Request) -> str:
        return str(request.scope.get("root_path", "")).rstrip("/")

    @lru_cache(maxsize=8)
    def written(prefix: str) -> bytes:
        servers = {"servers": [{"url": prefix}]} if prefix else {}
        return to_json({**schema(), **servers})

    async def document(request: Request) -> Response:
        return Response(written(prefix_of(request)), media_type="application/json")

    async def page(request: Request) -> Response:
        prefix = prefix_of(request)
        html = get_swagger_ui_html(
            openapi_url=prefix + SCHEMA,
            title=f"{title} - Swagger UI",
            swagger_js_url=f"{prefix}{_FILES}/swagger-ui-bundle.js",
            swagger_css_url=f"{prefix}{_FILES}/swagger-ui.css",
            swagger_favicon_url=f"{prefix}{_FILES}/favicon.png",
            swagger_ui_parameters=_PARAMETERS,
        )
        [script] = re.findall(rb"<script>(.*?)</script>", bytes(html.body), re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(script).digest()).decode()
        html.headers["Content-Security-Policy"] = _POLICY.format(script=f"sha256-{digest}")
        html.headers["Referrer-Policy"] = "no-referrer"
        return html

    files = Mount(_FILES, StaticFiles(packages=[("fastapi_offline", "static")]))
    return [files, Route(SCHEMA, document, include_in_schema=False), Route(_PAGE, page, include_in_schema=False)]
