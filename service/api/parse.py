"""Parses request bodies to typed requests, and turns all their errors into one InvalidRequest.

Every message names the field, the value received and the allowed values. For an unknown field it names the nearest
known field. For a knob of another mode it names the modes that have the knob.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

from msgspec.structs import replace
from pydantic import BaseModel, ValidationError

from service.api.content import check_parts
from service.api.fields import IgnoredFields
from service.api.protocol import (
    GENERATE,
    MAX_INTEGER,
    REQUESTS,
    GenerateCommon,
    GenerateQuality,
    Json,
    ResponseFormat,
)
from service.constraints.constraint import Constraint
from service.constraints.json_text import read_json
from service.decode.modes import KNOBS
from service.decode.registry import make_mode, these_knobs
from service.engine.request import MAX_SEED, SamplingParams
from service.errors import InvalidRequest, UnknownModel, nearest, similar
from service.ipc.data import Arrival
from service.messages.replica_status import ModelCard
from service.messages.wire import Origin, ReplicaRequest, Weights
from service.settings.defaults import DEFAULT_MAX_TOKENS

#: characters of a value or a name, and problems, that an error shows
_SHOWN = 80
_EXPLAINED = 10
_ENCODER = json.JSONEncoder(ensure_ascii=False)
#: the fields that constrain an answer; the replica compiles the constraint
_CONSTRAINTS = ("response_format", "regex", "choice", "grammar")
_SCHEMA_PARAM = "response_format.json_schema.schema"
#: the fields that `SamplingParams` has under the same name
_SAMPLING = tuple(name for name in SamplingParams.__struct_fields__ if name in GenerateCommon.model_fields)
#: blocks of a whole answer that come in one chunk
_TOGETHER = 16

#: path of an object in a body, without indices -> its name in errors; other objects are named by their paths
_OBJECTS: Mapping[str, str] = {
    "messages": "a message",
    "items.messages": "a message",
    "tools": "a tool",
    "tools.function": "a tool's function",
}


@dataclass(frozen=True, slots=True)
class RequestContext:
    """The source of all fields of a `ReplicaRequest` that do not stand in the body.

    `tenant`, `weight`: the name and the weight of the API key. `salted`: makes a cache salt of that key alone.
    `weights`: the oldest weights that may answer. `default_max_tokens`: the longest answer of a request without a
    limit. `ignored`: gets the names of fields that are not served.
    """

    card: ModelCard
    timeout_limit_s: float
    tenant: str = ""
    weight: float = 1.0
    salted: Callable[[str], str] = str
    origin: Origin = field(default_factory=Origin)
    weights: Weights | None = None
    default_max_tokens: int = DEFAULT_MAX_TOKENS
    ignored: IgnoredFields = field(default_factory=IgnoredFields)


def parse_json(body: bytes) -> Json:
    """The JSON object of a body. InvalidRequest if the body is not a JSON object, or has too many parts."""
    try:
        value = read_json(body)
    except ValueError as error:
        raise InvalidRequest(f"the body is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise InvalidRequest(f"the body is {_show(value)}, a JSON object is expected")
    check_parts(value)
    return value


def parse_generate(body: Mapping[str, Any], default_mode: str) -> GenerateCommon:
    """The typed request of POST /generate. Without `mode` and `quality` it is one of the default mode."""
    by_quality = body.get("quality") is not None
    if by_quality:
        _check_quality_is_alone(body)
    elif body.get("mode") is None:
        body = {**body, "mode": default_mode}
    try:
        request: GenerateCommon = (GenerateQuality.model_validate if by_quality else GENERATE.validate_python)(body)
    except ValidationError as error:
        raise explain(error.errors(include_url=False), GenerateCommon) from None
    return request


def to_replica_request(
    request: GenerateCommon, context: RequestContext, *, stream: bool, shorten: bool = False, **fields: Any
) -> ReplicaRequest:
    """The request for a replica. `fields`: fields that follow from another API's body.

    `shorten`: whether `max_new_tokens` may be more than the prompt leaves of the context. A request without a limit may
    always be shortened. UnknownModel, or InvalidRequest if the request is over the server's limits.
    """
    card, timeout_limit_s = context.card, context.timeout_limit_s
    limit = request.max_new_tokens or context.default_max_tokens
    shorten = shorten or request.max_new_tokens is None
    if request.model is not None:
        check_model(request.model, card)
    mode, knobs = _mode_and_knobs(request, card)
    timeout_s = request.timeout_s or timeout_limit_s
    if timeout_s > timeout_limit_s:
        raise InvalidRequest(
            f"timeout_s is {timeout_s}, allowed is 0 < timeout_s <= {timeout_limit_s}", param="timeout_s"
        )
    if request.min_tokens > limit:
        raise InvalidRequest(
            f"min_tokens is {request.min_tokens}, allowed are 0 to max_new_tokens, {limit}",
            param="min_tokens",
        )
    if "constraint" not in fields:
        fields["constraint"] = constraint_of(request)
    _note_ignored_keywords(fields["constraint"], context.ignored)
    seed = secrets.randbits(53) if request.seed is None else request.seed
    parsed: Json = {
        "mode": make_mode(mode, knobs),
        "sampling": _sampling(request, seed),
        "bad_words": tuple(request.bad_words),
        "text": request.prompt,
        "token_ids": tuple(request.prompt_token_ids) if request.prompt_token_ids else None,
        "messages": tuple(message.model_dump() for message in request.messages) if request.messages else None,
        "return_trace": request.return_trace,
        "return_step_map": request.return_step_map,
    }
    return ReplicaRequest(
        request_id=secrets.token_hex(12),
        max_new_tokens=min(limit, card.max_model_len) if shorten else limit,
        shorten=shorten,
        timeout_s=timeout_s,
        arrived=Arrival.now(),
        stop=tuple(request.stop or ()),
        stop_token_ids=frozenset(token for token in request.stop_token_ids if token <= MAX_INTEGER),
        ignore_eos=request.ignore_eos,
        stream_steps=request.stream_steps,
        cache_salt=context.salted(request.cache_salt or ""),
        priority=request.priority,
        tenant=context.tenant,
        weight=context.weight,
        origin=context.origin,
        weights=context.weights,
        session=request.prompt_cache_key or "",
        together=1 if stream else _TOGETHER,
        quality=getattr(request, "quality", None) or "",
        **(parsed | fields),
    )


def _sampling(request: GenerateCommon, seed: int) -> SamplingParams:
    fields = {name: getattr(request, name) for name in _SAMPLING}
    return SamplingParams(**fields | {"seed": seed, "top_k": min(request.top_k, MAX_INTEGER)})


def _note_ignored_keywords(constraint: Constraint | None, ignored: IgnoredFields) -> None:
    """Adds the ignored keywords of schemas. InvalidRequest if the server is strict and there is one."""
    for name in constraint.ignored if constraint is not None else ():
        if ignored.strict:
            raise InvalidRequest(f"{name} is not supported", param=name)
        ignored.add(name)


def further_request(request: ReplicaRequest, index: int, **prompt: Any) -> ReplicaRequest:
    """Answer `index` of a request with several. It has the request's seed + `index`. `prompt`: its own prompt."""
    seed = (request.sampling.seed + index) % (MAX_SEED + 1)
    return replace(request, request_id=secrets.token_hex(12), sampling=replace(request.sampling, seed=seed), **prompt)


def check_model(name: str, card: ModelCard) -> None:
    """UnknownModel if `name` is no name of the served model."""
    if not card.has_name(name):
        served = " or ".join(map(repr, (card.name, *card.aliases)))
        raise UnknownModel(f"model is {name!r}, served is {served}", param="model")


def _check_quality_is_alone(body: Mapping[str, Any]) -> None:
    for name in ("mode", *KNOBS):
        if body.get(name) is not None:
            raise InvalidRequest(
                f"quality is {_show(body['quality'])} and {name} is {_show(body[name])}, allowed is one of them: "
                "quality chooses the mode and its knobs",
                param="quality",
            )


def _mode_and_knobs(request: GenerateCommon, card: ModelCard) -> tuple[str, dict[str, Any]]:
    """The mode and the knobs of a request, or of the preset that it names, at the load on the card."""
    if (quality := getattr(request, "quality", None)) is not None:
        plan = card.quality.plan(quality, request.temperature)
        return plan.mode, dict(plan.knobs)
    mode: str = request.mode  # type: ignore[attr-defined]
    return mode, {**card.defaults.get(mode, {}), **request.knobs}


def constraint_of(request: GenerateCommon) -> Constraint | None:
    """The constraint that a request asks for. InvalidRequest if it asks for two, or for no end."""
    names = [name for name in _CONSTRAINTS if getattr(request, name) is not None]
    if len(names) > 1:
        raise InvalidRequest(
            f"{' and '.join(names)} are given, allowed is one of {', '.join(_CONSTRAINTS)}", param=names[-1]
        )
    constraint = _constraint(request)
    if constraint is not None and request.ignore_eos:
        raise InvalidRequest(
            f"ignore_eos is true, which {names[0]} does not allow: the answer has an end", param="ignore_eos"
        )
    return constraint


def _constraint(request: GenerateCommon) -> Constraint | None:
    if request.regex is not None:
        return Constraint.regex(request.regex)
    if request.choice is not None:
        return Constraint.choice(request.choice)
    if request.grammar is not None:
        return Constraint.grammar(request.grammar)
    return None if request.response_format is None else _of_format(request.response_format)


def _of_format(form: ResponseFormat) -> Constraint | None:
    schema = form.json_schema
    for kind, name in (("json_schema", "json_schema"), ("structural_tag", "format")):
        if (form.type == kind) != ((value := getattr(form, name)) is not None):
            is_there = "is missing" if value is None else "is given"
            raise InvalidRequest(
                f"response_format.type is {form.type!r} and response_format.{name} {is_there}; "
                f"type {kind} has one, others have none",
                param=f"response_format.{name}",
            )
    if form.type == "text":
        return None
    if form.format is not None:
        return Constraint.tags(form.format, "response_format.format")
    if schema is None:
        return Constraint.json(None, "response_format")
    return Constraint.json(schema.schema_, _SCHEMA_PARAM, strict=bool(schema.strict))


# --- errors ----------------------------------------------------------------------------------------


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
    mode = str(path.pop(0)) if path and path[0] in REQUESTS else None
    if not path and problem["type"] in {"union_tag_invalid", "union_tag_not_found"}:
        received = _show(problem["input"].get("mode"))
        return "mode", f"mode is {received}, allowed are {', '.join(REQUESTS)}"
    name = ".".join(str(part) for part in path) or None
    if problem["type"] == "extra_forbidden":
        return name, _unknown(path, mode, schema)
    if problem["type"] == "missing" and name:
        return name, f"{name} is missing"
    return name, f"{name or 'the request'} is {_show(problem['input'])}: {problem['msg']}"


def _unknown(path: Sequence[str | int], mode: str | None, schema: type[BaseModel]) -> str:
    name = str(path[-1])[:_SHOWN]
    if len(path) > 1:
        *owner, _ = path
        title = _OBJECTS.get(".".join(str(part) for part in owner if isinstance(part, str)), ".".join(map(str, owner)))
        fields = _fields_of(owner, schema)
        return f"{name!r} is not a field of {title}" + (f"; {nearest(name, fields)}" if fields else "")
    if mode and name in KNOBS:
        users = [user for user, schema in REQUESTS.items() if name in schema.model_fields]
        used = sorted(set(KNOBS) & set(REQUESTS[mode].model_fields))
        return f"mode {mode!r} does not use {name} ({', '.join(users)} do); {these_knobs(used)}"
    names = {field for schema in REQUESTS.values() for field in schema.model_fields}
    return f"{name!r} is not a field{similar(name, names)}"


def _fields_of(path: Sequence[str | int], schema: type[BaseModel]) -> list[str]:
    """The fields of the object at a path in a body. In pydantic's paths, the tag of a union's member is a part, too."""
    models = [schema]
    for part in path:
        tagged = [model for model in models if "type" in model.model_fields and part in _tags(model)]
        if len(models) > 1 and tagged:
            models = tagged
        elif isinstance(part, str):
            fields = [
                field for model in models for name, field in model.model_fields.items() if part in (name, field.alias)
            ]
            models = [model for field in fields for model in _models_in(field.annotation)]
    return [field.alias or name for model in models for name, field in model.model_fields.items()]


def _tags(model: type[BaseModel]) -> tuple[object, ...]:
    return get_args(model.model_fields["type"].annotation)


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    """The models that a type contains: of a list, of a union."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in get_args(annotation) for model in _models_in(argument)]


def _show(value: object) -> str:
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
