"""Parses the bodies of all APIs to typed bodies, and those to `ReplicaRequest`. All errors become one InvalidRequest.

Every message names the field, the value received and the allowed values.
"""

import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import asdict, replace
from pydantic import ValidationError

from service.api import protocol
from service.api.content import MAX_PARTS, check_parts
from service.api.errors import explain, show
from service.api.fields import BodyFields, IgnoredFields
from service.api.translate import translated
from service.constraints.constraint import Constraint
from service.constraints.json_text import read_json
from service.decode.knobs import KnobValue, knobs_in
from service.decode.modes import KNOBS, MODES, Mode
from service.decode.registry import make_mode, these_knobs
from service.engine.request import MAX_SEED, MeasuredMode, SamplingParams, Sharing
from service.errors import InvalidRequest, UnknownModel
from service.ipc.data import Arrival
from service.messages.replica_status import ModelCard
from service.messages.wire import Origin, ReplicaRequest, Weights
from service.quality.presets import Presets
from service.settings.defaults import DEFAULT_MAX_TOKENS

_SCHEMA_PARAM = "response_format.json_schema.schema"
#: the fields that `SamplingParams` has under the same name
_SAMPLING = tuple(name for name in SamplingParams.__struct_fields__ if name in protocol.DecodingFields.model_fields)
#: blocks of a whole answer that come in one chunk
WHOLE_ANSWER_INTERVAL = 16


_Validated = TypeVar("_Validated", bound=protocol.NamedModel)
_Parsed = TypeVar("_Parsed", bound=protocol.ApiBody)
_Prompted = TypeVar("_Prompted", bound=protocol.PromptBody)


@dataclass(frozen=True, slots=True)
class RequestContext:
    """The source of all fields of a `ReplicaRequest` that do not stand in the body."""

    card: ModelCard
    timeout_limit_s: float
    tenant: str = ""  # the name of the API key
    tenant_share: float = 1.0  # the weight of the API key
    salted: Callable[[str], str] = str  # makes a cache salt of that key alone
    origin: Origin = field(default_factory=Origin)
    weights: Weights | None = None  # the oldest weights that may answer
    default_max_tokens: int = DEFAULT_MAX_TOKENS  # the longest answer of a request without a limit
    ignored: IgnoredFields = field(default_factory=IgnoredFields)  # gets the names of fields that are not served


def parse_json(body: bytes) -> protocol.Json:
    """The JSON object of a body. InvalidRequest if the body is not a JSON object, or has too many parts."""
    try:
        value = read_json(body)
    except ValueError as error:
        raise InvalidRequest(f"the body is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise InvalidRequest(f"the body is {show(value)}, a JSON object is expected")
    check_parts(value)
    return value


def parse_body(body: Mapping[str, Any], schema: type[_Parsed], fields: BodyFields, context: RequestContext) -> _Parsed:
    """The typed body of another server's API, whose fields that are not served are ignored, at any depth.

    Raises InvalidRequest or UnknownModel with the reason.
    """
    served = fields.served(translated(body, context.ignored), schema, context.ignored)
    _check_mode(served, context.card.default_mode)
    return validate_body(served, schema, context)


def validate_body(fields: Mapping[str, Any], schema: type[_Validated], context: RequestContext) -> _Validated:
    """The fields as a typed body, validated once. Raises InvalidRequest or UnknownModel with the reason."""
    try:
        request = schema.model_validate(fields)
    except ValidationError as error:
        request = _without_further_fields(error, fields, schema, context.ignored)
    check_model(request.model, context.card)
    return request


def _without_further_fields(
    error: ValidationError, fields: Mapping[str, Any], schema: type[_Validated], ignored: IgnoredFields
) -> _Validated:
    """The body without the fields that its objects may not have. InvalidRequest if they are not all that is wrong.

    The fields of all APIs are this service's own, so their objects may have no further ones.
    """
    _check_count(error)
    problems = error.errors(include_url=False, include_input=False)
    extra = [problem["loc"] for problem in problems if problem["type"] == "extra_forbidden"]
    if not extra or ignored.strict or any(path[0] in protocol.DecodingFields.model_fields for path in extra):
        raise explain(error.errors(include_url=False), schema) from None
    try:
        request = schema.model_validate(fields, extra="ignore")
    except ValidationError as other:
        raise explain(other.errors(include_url=False), schema) from None
    for path in extra:
        ignored.add(".".join(part for part in path if isinstance(part, str)))
    return request


def _check_count(error: ValidationError) -> None:
    """InvalidRequest for a body whose errors take long to name."""
    if (count := error.error_count()) > MAX_PARTS:
        raise InvalidRequest(f"{count} fields of the body are wrong or not served, at most {MAX_PARTS} are named")


def with_form(body: _Parsed, form: protocol.ResponseFormat, name: str) -> _Parsed:
    """A body whose field `name` gives the form of the answer, with this form as its `response_format`."""
    if body.response_format is not None:
        raise InvalidRequest(f"{name} and response_format are given, allowed is one of them", param="response_format")
    return body.model_copy(update={"response_format": form})


def with_types_served(
    body: Mapping[str, Any], name: str, served: Collection[str], ignored: IgnoredFields
) -> Mapping[str, Any]:
    """A body whose list `name` has no objects of other types than `served`, such as a tool of the type `web_search`.

    A strict request keeps them, to be refused.
    """
    objects = body.get(name)
    if ignored.strict or not isinstance(objects, list):
        return body
    remaining = []
    for item in objects:
        kind = item.get("type") if isinstance(item, Mapping) else None
        if isinstance(kind, str) and kind not in served:
            ignored.add(f"{name}.{kind}")
        else:
            remaining.append(item)
    return {**body, name: remaining}


def parse_generate(body: Mapping[str, Any], default_mode: str, schema: type[_Prompted]) -> _Prompted:
    """The typed body of POST /generate or of the library, which may have no other fields."""
    _check_mode(body, default_mode)
    try:
        return schema.model_validate(body)
    except ValidationError as error:
        _check_count(error)
        raise explain(error.errors(include_url=False), schema) from None


def _check_mode(body: Mapping[str, Any], default_mode: str) -> None:
    """InvalidRequest if a body has knobs of another mode, or a mode or knobs beside a quality."""
    fields = [name for name in ("mode", *KNOBS) if body.get(name) is not None]
    if (quality := body.get("quality")) is not None:
        for name in fields:
            raise InvalidRequest(
                f"quality is {show(quality)} and {name} is {show(body[name])}, allowed is one of them: "
                "quality chooses the mode and its knobs",
                param="quality",
            )
    mode = body["mode"] if "mode" in fields else default_mode
    used = knobs_in(MODES[mode]) if isinstance(mode, str) and mode in MODES else KNOBS
    for name in fields:
        if name != "mode" and name not in used:
            users = ", ".join(user for user in MODES if name in knobs_in(MODES[user]))
            raise InvalidRequest(f"mode {mode!r} does not use {name} ({users} do); {these_knobs(used)}", param=name)


def check_model(name: str, card: ModelCard) -> None:
    """UnknownModel if `name` is no name of the served model."""
    if not card.has_name(name):
        served = " or ".join(map(repr, (card.name, *card.aliases)))
        raise UnknownModel(f"model is {name!r}, served is {served}", param="model")


# --- the request for a replica ---------------------------------------------------------------------


class Prompt(Struct, frozen=True):
    """A text, token ids or a chat to be continued, and the constraint of the answer. Fields of `ReplicaRequest`."""

    text: str | None = None
    token_ids: tuple[int, ...] | None = None
    messages: tuple[Mapping[str, Any], ...] | None = None  # as chat templates take them
    tools: tuple[Mapping[str, Any], ...] = ()
    think: bool | None = None
    constraint: Constraint | None = None


@dataclass(frozen=True, slots=True)
class OutputParams:
    """The answer that a body asks for, in the fields that each API names in its own way."""

    max_new_tokens: int | None  # None: the server's default
    #: whether `max_new_tokens` may be more than the prompt leaves of the context; always without a limit
    shorten: bool = True
    stream: bool = False
    logprobs: int | None = None  # top log-probabilities per token, None for no log-probabilities


def to_replica_request(
    body: protocol.DecodingFields, context: RequestContext, prompt: Prompt, output: OutputParams
) -> ReplicaRequest:
    """The request for a replica. InvalidRequest if the body is over the server's limits."""
    limit = output.max_new_tokens or context.default_max_tokens
    shorten = output.shorten or output.max_new_tokens is None
    card, timeout_s = context.card, timeout_of(body, context)
    mode, plans = mode_of(body, card.default_mode, card.defaults, card.quality)
    check_min_tokens(body, limit)
    _note_ignored_keywords(prompt.constraint, context.ignored)
    return ReplicaRequest(
        request_id=secrets.token_hex(12),
        mode=mode,
        sampling=sampling_of(body),
        max_new_tokens=min(limit, context.card.max_model_len) if shorten else limit,
        timeout_s=timeout_s,
        arrived=Arrival.now(),
        origin=context.origin,
        weights=context.weights,
        quality=body.quality or "",
        plans=plans,
        stop=tuple(body.stop or ()),
        bad_words=tuple(body.bad_words),
        stop_token_ids=frozenset(token for token in body.stop_token_ids if token <= protocol.MAX_INTEGER),
        ignore_eos=body.ignore_eos,
        return_trace=body.return_trace,
        return_token_texts=output.logprobs is not None,
        return_step_map=isinstance(body, protocol.StepMapField) and body.return_step_map,
        sharing=sharing_of(body, context),
        session=body.prompt_cache_key or "",
        shorten=shorten,
        top_logprobs=output.logprobs or 0,
        stream_interval=1 if output.stream else WHOLE_ANSWER_INTERVAL,
        **asdict(prompt),
    )


def check_records(requests: Sequence[ReplicaRequest]) -> None:
    """InvalidRequest for answers that may have too many records of their tokens: one body could ask for gigabytes."""
    [first, *_] = requests
    each = (1 + first.top_logprobs) * first.return_token_texts + first.return_step_map + 2 * first.return_trace
    tokens = sum(request.max_new_tokens for request in requests)
    if each * tokens > protocol.MAX_RECORDS:
        raise InvalidRequest(
            f"answers of {tokens} tokens with log-probabilities, traces or step maps may have {each * tokens} records, "
            f"allowed are {protocol.MAX_RECORDS}: a token has one for its log-probability, one for each of its "
            f"alternatives, one for its step and two for its trace; ask for fewer tokens, answers or alternatives",
            param="max_new_tokens",
        )


def timeout_of(body: protocol.QueueFields, context: RequestContext) -> float:
    """The time limit of a request. InvalidRequest if it is over the server's."""
    timeout_s, limit_s = body.timeout_s or context.timeout_limit_s, context.timeout_limit_s
    if timeout_s > limit_s:
        raise InvalidRequest(f"timeout_s is {timeout_s}, allowed is 0 < timeout_s <= {limit_s}", param="timeout_s")
    return timeout_s


def sharing_of(body: protocol.QueueFields, context: RequestContext) -> Sharing:
    """How a request shares an engine with others."""
    return Sharing(
        tenant=context.tenant,
        tenant_share=context.tenant_share,
        priority=body.priority,
        cache_salt=context.salted(body.cache_salt or ""),
    )


def check_min_tokens(body: protocol.DecodingFields, limit: int) -> None:
    """InvalidRequest if an answer of at most `limit` tokens cannot have its minimum."""
    if body.min_tokens > limit:
        raise InvalidRequest(
            f"min_tokens is {body.min_tokens}, allowed are 0 to max_new_tokens, {limit}", param="min_tokens"
        )


def sampling_of(body: protocol.DecodingFields) -> SamplingParams:
    """The sampling of a request, without its `bad_words`. A request without a seed gets a random one."""
    fields = {name: getattr(body, name) for name in _SAMPLING}
    seed = secrets.randbits(53) if body.seed is None else body.seed
    return SamplingParams(**fields | {"seed": seed, "top_k": min(body.top_k, protocol.MAX_INTEGER)})


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


def mode_of(
    body: protocol.DecodingFields, default: str, knobs: Mapping[str, Mapping[str, KnobValue]], presets: Presets
) -> tuple[Mode, tuple[MeasuredMode, ...]]:
    """The mode of a request with its knobs, and the plans of the preset that it names.

    `default`: the mode of requests that name none. `knobs`: the default knobs of each mode.
    """
    if body.quality is not None:
        plans = presets.plans_for(body.quality, body.temperature)
        first, *_ = plans
        modes = tuple(MeasuredMode(plan.decoding_mode, plan.tokens_per_forward) for plan in plans)
        return make_mode(first.mode, first.knobs), modes if len(modes) > 1 else ()
    mode = body.mode or default
    return make_mode(mode, {**knobs.get(mode, {}), **body.knobs}), ()


def _of_format(form: protocol.ResponseFormat) -> Constraint | None:
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


#: the fields that constrain an answer -> their constraints; the replica compiles them
_CONSTRAINTS: Mapping[str, Callable[[Any], Constraint | None]] = {
    "response_format": _of_format,
    "regex": Constraint.regex,
    "choice": Constraint.choice,
    "grammar": Constraint.grammar,
}


def constraint_of(body: protocol.DecodingFields) -> Constraint | None:
    """The constraint that a body asks for. InvalidRequest if it asks for two, or for no end."""
    names = [name for name in _CONSTRAINTS if getattr(body, name) is not None]
    if len(names) > 1:
        raise InvalidRequest(
            f"{' and '.join(names)} are given, allowed is one of {', '.join(_CONSTRAINTS)}", param=names[-1]
        )
    for name in names:
        constraint = _CONSTRAINTS[name](getattr(body, name))
        if constraint is not None and body.ignore_eos:
            raise InvalidRequest(
                f"ignore_eos is true, which {name} does not allow: the answer has an end", param="ignore_eos"
            )
        return constraint
    return None
