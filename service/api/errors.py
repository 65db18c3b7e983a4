"""Errors as JSON, in the shape of each route's API: errors of this service, of pydantic and of the router, and bugs.

An invalid request has the status 400 on routes of other APIs, as there: some clients repeat a request after 422. This
service's own routes answer 422. The error of a prompt that does not fit has the code or the words by which agents know
that they must shorten the conversation.
"""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, get_args

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Match
from typing_extensions import TypedDict

from service.decode.modes import MODES
from service.errors import InvalidRequest, MrpServeError, PromptTooLong, codes, nearest, similar
from service.tracebacks import error_for_client


class ErrorDetail(TypedDict):
    """The error. `param`: the field at fault."""

    code: str
    message: str
    param: str | None
    request_id: str


class ErrorAnswer(TypedDict):
    """The body of every error."""

    error: ErrorDetail


#: called with every error that ends a request
CountError = Callable[[MrpServeError], None]
#: makes the JSON of an error and the id of its request
Write = Callable[[MrpServeError, str], Mapping[str, Any]]

#: key in the scope of a request, set once the error that ends the request is logged
LOGGED = "mrp_error_logged"
#: nginx's status for a client that disconnected before the answer; it appears only in the log
CLIENT_LEFT = 499

_HTTP_CODES = {404: "not_found", 405: "method_not_allowed"}
_OTHER_HTTP_CODE = "http_error"
#: the codes of all errors
CODES = (*codes(), *_HTTP_CODES.values(), _OTHER_HTTP_CODE)


class _HttpError(MrpServeError):
    """An error of the router: unknown route or method."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = _HTTP_CODES.get(status, _OTHER_HTTP_CODE)


def install_error_handlers(app: FastAPI, count: CountError) -> None:
    """Answers every exception of the app's routes. `count` gets the errors of POST requests."""

    def answer(request: Request, error: MrpServeError, headers: dict[str, str] | None = None) -> JSONResponse:
        if request.method == "POST":
            count(error)
        path = request.scope["path"].removeprefix(request.scope.get("root_path", ""))
        return error_response(error, request.scope["request_id"], path, headers or {})

    @app.exception_handler(MrpServeError)
    async def ours(request: Request, error: MrpServeError) -> JSONResponse:
        return answer(request, error)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        return answer(request, explain(error.errors(), BaseModel))

    @app.exception_handler(HTTPException)
    async def routing(request: Request, error: HTTPException) -> JSONResponse:
        message = f"{request.method} {request.url.path}: {error.detail}"
        if error.status_code == 404 and (served := _similar_path(app, request)):
            message += f"; did you mean {served}? It depends on the client's base URL"
        return answer(request, _HttpError(error.status_code, message), dict(error.headers or {}))

    @app.exception_handler(ClientDisconnect)
    async def left(request: Request, error: ClientDisconnect) -> Response:  # noqa: ARG001
        return Response(status_code=CLIENT_LEFT)

    @app.exception_handler(Exception)
    async def unexpected(request: Request, error: Exception) -> JSONResponse:
        request.scope[LOGGED] = True  # Starlette raises the error again after this handler
        return answer(request, error_for_client(error, request.scope["request_id"]))


def _similar_path(app: FastAPI, request: Request) -> str | None:
    """The route of a path without `/v1`, or with it twice, or with a slash too many. None if there is none."""
    root = request.scope.get("root_path", "")
    path = "/" + "/".join(part for part in request.scope["path"].removeprefix(root).split("/") if part)
    for candidate in (path, f"/v1{path}", path.removeprefix("/v1")):
        scope = {**request.scope, "path": root + candidate}
        if any(route.matches(scope)[0] is not Match.NONE for route in app.routes):
            return candidate
    return None


def error_json(error: MrpServeError, request_id: str) -> ErrorAnswer:
    """An error as the routes of this service's own API send it."""
    return {"error": {"code": error.code, "message": error.message, "param": error.param, "request_id": request_id}}


def problem(
    error: MrpServeError, request_id: str, headers: Mapping[str, str] = {}, write: Write = error_json
) -> JSONResponse:
    """The answer to a request that failed."""
    headers = dict(headers)
    if error.retry_after is not None:
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after)))
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse(write(error, request_id), error.status, headers)


def renamed(error: MrpServeError, names: Mapping[str, str]) -> MrpServeError:
    """The error with the field names that the client used. `names`: ours -> the client's."""
    message = error.message
    for ours, theirs in names.items():
        message = message.replace(ours, theirs)
    return type(error)(message, param=names.get(error.param or "", error.param), retry_after=error.retry_after)


# --- the errors of each API ------------------------------------------------------------------------


def error_writer(path: str) -> Write:
    """The function that writes the errors of a path, errors of the router included."""
    if path.startswith("/v1/messages"):
        return anthropic_error
    return openai_error if path.startswith("/v1/") else error_json


def error_response(error: MrpServeError, request_id: str, path: str, headers: Mapping[str, str]) -> JSONResponse:
    """The response to an error of a path, in the shape of its API."""
    write = error_writer(path)
    if write is anthropic_error:
        headers = {**headers, "request-id": request_id}
        error = in_anthropic_terms(error) if error.status == 422 else error
    elif write is openai_error and error.status == 422:
        error = renamed(error, {})
        error.status = 400
    return problem(error, request_id, headers, write)


class TypedErrorDetail(ErrorDetail):
    """The error, with the API's type of error."""

    type: str


# --- OpenAI ----------------------------------------------------------------------------------------

_OPENAI_TYPES: Final[Mapping[int, str]] = {
    401: "authentication_error",
    404: "not_found_error",
    429: "rate_limit_error",
}

#: OpenAI's code for a prompt that does not fit
_OPENAI_TOO_LONG: Final = "context_length_exceeded"

#: name of a field in this service -> its name in OpenAI's API
OPENAI_NAMES: Final = {"max_new_tokens": "max_tokens", "prompt_token_ids": "prompt"}


class OpenAiErrorAnswer(TypedDict):
    """Every error of these routes."""

    error: TypedErrorDetail


def openai_error(error: MrpServeError, request_id: str) -> OpenAiErrorAnswer:
    """The body of an error of the OpenAI routes."""
    kind = "server_error" if error.status >= 500 else _OPENAI_TYPES.get(error.status, "invalid_request_error")
    detail = error_json(error, request_id)["error"]
    if isinstance(error, PromptTooLong):
        detail["code"] = _OPENAI_TOO_LONG
    return {"error": {**detail, "type": kind}}


# --- Anthropic -------------------------------------------------------------------------------------

_ANTHROPIC_TYPES: Final[Mapping[int, str]] = {
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}

#: name of a field in this service -> its name in Anthropic's API
_ANTHROPIC_NAMES: Final = {"max_new_tokens": "max_tokens"}
_TOO_LONG: Final = "prompt is too long: "


class AnthropicErrorAnswer(TypedDict):
    """Every error of these routes."""

    type: Literal["error"]
    error: TypedErrorDetail
    request_id: str


def in_anthropic_terms(error: MrpServeError) -> MrpServeError:
    """The error with the client's names of fields, and with Anthropic's status."""
    ours = renamed(error, _ANTHROPIC_NAMES)
    ours.status = 400 if error.status == 422 else error.status
    if isinstance(ours, PromptTooLong) and not ours.message.startswith(_TOO_LONG):
        ours.message = _TOO_LONG + ours.message
    return ours


def anthropic_error(error: MrpServeError, request_id: str) -> AnthropicErrorAnswer:
    """The body of an error of Anthropic's routes, and the data of a stream's event `error`."""
    kind = _ANTHROPIC_TYPES.get(error.status, "api_error" if error.status >= 500 else "invalid_request_error")
    detail = error_json(error, request_id)["error"]
    return {"type": "error", "error": {"type": kind, **detail}, "request_id": request_id}


# --- errors of pydantic ------------------------------------------------------------------------------

#: characters of a value or a name, and problems, that an error shows
_SHOWN = 80
_EXPLAINED = 10
_ENCODER = json.JSONEncoder(ensure_ascii=False)
#: path of an object in a body, without indices -> its name in errors; other objects are named by their paths
_OBJECTS: Mapping[str, str] = {
    "messages": "a message",
    "items.messages": "a message",
    "tools": "a tool",
    "tools.function": "a tool's function",
}


def explain(problems: Sequence[Any], schema: type[BaseModel]) -> InvalidRequest:
    """The first of pydantic's errors, and the number of the others. `param` is the first field at fault.

    `schema`: the model of the body.
    """
    explained = [_explain(problem, schema) for problem in problems[:_EXPLAINED]]
    messages = _with_lists_once(dict.fromkeys(message for _, message in explained))
    if len(problems) > _EXPLAINED:
        messages.append(f"and {len(problems) - _EXPLAINED} more")
    return InvalidRequest("; ".join(messages), param=explained[0][0])


def _with_lists_once(messages: Iterable[str]) -> list[str]:
    """The messages. Only the first of those with the same list of fields has it."""
    shortened, lists = list[str](), set[str]()
    for message in messages:
        rest, _, fields = message.partition("; known are ")
        shortened.append(rest if fields in lists else message)
        lists.add(fields)
    return shortened


def _explain(problem: Mapping[str, Any], schema: type[BaseModel]) -> tuple[str | None, str]:
    path = [part for part in problem["loc"] if part != "body"]
    name = ".".join(str(part) for part in path) or None
    if name == "mode":
        return name, f"mode is {show(problem['input'])}, allowed are {', '.join(MODES)}"
    if problem["type"] == "extra_forbidden":
        return name, _unknown(path, schema)
    if problem["type"] == "missing" and name:
        return name, f"{name} is missing"
    return name, f"{name or 'the request'} is {show(problem['input'])}: {problem['msg']}"


def _unknown(path: Sequence[str | int], schema: type[BaseModel]) -> str:
    name = str(path[-1])[:_SHOWN]
    if len(path) == 1:
        return f"{name!r} is not a field{similar(name, set(schema.model_fields))}"
    *owner, _ = path
    title = _OBJECTS.get(".".join(str(part) for part in owner if isinstance(part, str)), ".".join(map(str, owner)))
    fields = _fields_of(owner, schema)
    return f"{name!r} is not a field of {title}" + (f"; {nearest(name, fields)}" if fields else "")


def _fields_of(path: Sequence[str | int], schema: type[BaseModel]) -> list[str]:
    """The fields of the object at a path in a body. In pydantic's paths, the tag of a union's member is a part, too."""
    models = [schema]
    for part in path:
        tagged = [
            model
            for model in models
            if "type" in model.model_fields and part in get_args(model.model_fields["type"].annotation)
        ]
        if len(models) > 1 and tagged:
            models = tagged
        elif isinstance(part, str):
            fields = [
                field for model in models for name, field in model.model_fields.items() if part in (name, field.alias)
            ]
            models = [model for field in fields for model in _models_in(field.annotation)]
    return [field.alias or name for model in models for name, field in model.model_fields.items()]


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    """The models that a type contains: of a list, of a union."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in get_args(annotation) for model in _models_in(argument)]


def show(value: object) -> str:
    """A received value as JSON, cut to a readable length. The rest is not written."""
    text = ""
    try:
        for part in _ENCODER.iterencode(value):
            text += part
            if len(text) > _SHOWN:
                break
    except (TypeError, ValueError):
        text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
