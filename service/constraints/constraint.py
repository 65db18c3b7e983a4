"""A constraint as a request has it. Its size is checked here, its meaning by the compiler.

The gateway makes it from a request's fields. Its limits bound the time and memory of compiling it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from service.constraints.json_schema import supported_schema
from service.constraints.json_text import finite
from service.constraints.room import Room
from service.constraints.structural_tags import checked_format
from service.errors import InvalidRequest
from service.ipc.data import Data, Private

ConstraintKind = Literal["json", "regex", "choice", "grammar", "tags", "calls"]

MAX_SCHEMA, MAX_REGEX, MAX_GRAMMAR, MAX_CHOICES = 64 * 1024, 4096, 16 * 1024, 1000
#: the most characters of the schemas of all tools of a request
MAX_TOOL_SCHEMAS = 256 * 1024
#: how often as long as its limit a schema may be after it was adapted
_GROWTH = 4
#: the most schemas within each other, as literal JSON
MAX_DEPTH = 64

_ANY_OBJECT: Mapping[str, Any] = {"type": "object"}


@dataclass(frozen=True, slots=True)
class Owner:
    """The owner of a constraint. `tenant`: whose CPU time it uses. `salt`: only owners of one salt share a grammar."""

    tenant: str = ""
    salt: str = ""


NOBODY: Final = Owner()


class Preamble(Data, frozen=True):
    """A text before the constrained text, such as reasoning: from `begin` to `end`, then `gap`."""

    begin: str
    end: str
    gap: str
    in_prompt: bool = False  # whether the prompt has its beginning, so that it is required. Else it is optional


@dataclass(frozen=True, slots=True)
class ToolCallForm:
    """A call of the tool `name`: `head`, its arguments as JSON that fits `schema`, `tail`."""

    name: str
    head: str
    schema: Mapping[str, Any]
    tail: str
    param: str = "tools"  # the field with the schema
    strict: bool = False  # whether every keyword of the schema must hold


class Constraint(Data, frozen=True):
    """A constraint on a whole answer."""

    kind: ConstraintKind
    source: Private[str]  # a schema, tags or a list of texts as JSON, a pattern, a grammar
    param: str  # the field of the request, which errors name
    preamble: Preamble | None = None  # the text before the constrained text
    content: Constraint | None = None  # for the kind `calls`: the constraint on an answer without calls
    ignored: tuple[str, ...] = ()  # ignored keywords with their schema's field: `tools.function.parameters.uniqueItems`

    @classmethod
    def json(cls, schema: Mapping[str, Any] | bool | None, param: str, *, strict: bool = True) -> Constraint:
        """JSON that fits a schema; None: any JSON object. InvalidRequest if the schema is too large.

        `strict`: whether an unsupported keyword is an InvalidRequest. Else it is ignored.
        """
        if schema is None:
            return cls("json", _dumped(_ANY_OBJECT), param)
        _check_depth(schema, param)
        _within(_dumped(schema), MAX_SCHEMA, param)
        supported, ignored = _supported(schema, param, Room(), strict=strict)
        return cls("json", _within(_dumped(supported), _GROWTH * MAX_SCHEMA, param), param, ignored=ignored)

    @classmethod
    def regex(cls, pattern: str) -> Constraint:
        """A text that a regular expression matches as a whole. InvalidRequest if the expression is too long."""
        return cls("regex", _within(pattern, MAX_REGEX, "regex"), "regex")

    @classmethod
    def choice(cls, texts: Sequence[str]) -> Constraint:
        """One of several texts. InvalidRequest if they are too many, too long, or not texts."""
        if not 0 < len(texts) <= MAX_CHOICES or not all(texts):
            raise InvalidRequest(
                f"choice has {len(texts)} texts, allowed are 1 to {MAX_CHOICES}, none of them empty", param="choice"
            )
        source = json.dumps(list(dict.fromkeys(texts)), ensure_ascii=False)
        return cls("choice", _within(source, MAX_SCHEMA, "choice"), "choice")

    @classmethod
    def grammar(cls, text: str) -> Constraint:
        """A text of a grammar in Lark's or llama.cpp's form (GBNF). InvalidRequest if the grammar is too long."""
        return cls("grammar", _within(text, MAX_GRAMMAR, "grammar"), "grammar")

    @classmethod
    def tags(cls, form: Mapping[str, Any], param: str) -> Constraint:
        """Free text with constrained tags. `form`: the `format` of a structural tag. InvalidRequest if it is wrong."""
        _within(_dumped(form), MAX_SCHEMA, param)
        all_ignored, room = list[str](), Room()

        def adapt(schema: Any, path: str) -> Any:
            _check_depth(schema, path)
            supported, ignored = _supported(schema, path, room, strict=False)
            all_ignored.extend(ignored)
            return supported

        source = _within(_dumped(checked_format(form, param, adapt)), _GROWTH * MAX_SCHEMA, param)
        return cls("tags", source, param, ignored=tuple(dict.fromkeys(all_ignored)))

    @classmethod
    def calls(
        cls,
        forms: Sequence[ToolCallForm],
        *,
        opening: str,
        between: str | None,
        required: bool,
        content: Constraint | None = None,
    ) -> Constraint:
        """Calls of tools, after a text or none. InvalidRequest if the schemas are too large, or strict and unsupported.

        `opening`: the text before the first call. `between`: the text before each further one; None: one call at most.
        `required`: calls only. `content`: the constraint on an answer without calls; None: any text that does not begin
        a call.
        """
        for form in forms:
            _check_depth(form.schema, form.param)
        _within(_dumped([form.schema for form in forms]), MAX_TOOL_SCHEMAS, "tools")
        room = Room()
        schemas = [_supported(form.schema, form.param, room, strict=form.strict) for form in forms]
        source = {
            "opening": opening,
            "between": between,
            "forms": [
                {
                    "name": form.name,
                    "field": _field(form.param),
                    "strict": form.strict,
                    "head": form.head,
                    "schema": schema,
                    "tail": form.tail,
                }
                for form, (schema, _) in zip(forms, schemas, strict=True)
            ],
            "required": required,
        }
        ignored = dict.fromkeys(path for _, paths in schemas for path in paths)
        return cls(
            "calls",
            _within(_dumped(source), _GROWTH * MAX_TOOL_SCHEMAS, "tools"),
            "tools",
            content=None if required else content,
            ignored=(*ignored, *(() if content is None else content.ignored)),
        )


def _supported(schema: Any, param: str, room: Room, *, strict: bool) -> tuple[Any, tuple[str, ...]]:
    """The schema without unsupported keywords, and their names. InvalidRequest if `strict` and there is one.

    `room`: the room of all schemas of the request.
    """
    try:
        supported, ignored = supported_schema(schema, room)
    except TimeoutError as error:
        raise InvalidRequest(f"{param} {error}", param=param) from None
    if ignored and strict:
        raise InvalidRequest(
            f"{param} cannot be used: {', '.join(ignored)[:400]} is not supported in a strict schema", param=param
        )
    return supported, tuple(dict.fromkeys(f"{_field(param)}.{path.rpartition('.')[2]}" for path in ignored))


def _field(param: str) -> str:
    """The path of a field without indices."""
    return ".".join(name for name in param.split(".") if not name.isdecimal())


def _dumped(value: object) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except ValueError:  # a number beyond the largest float, such as 1e400
        return json.dumps(finite(value), ensure_ascii=False, separators=(",", ":"))


def _within(source: str, limit: int, param: str) -> str:
    if len(source) > limit:
        raise InvalidRequest(f"{param} has {len(source)} characters, allowed are {limit}", param=param)
    return source


def _check_depth(schema: object, param: str) -> None:
    """InvalidRequest if values are nested too deeply. Goes down level by level, without recursion."""
    level: list[object] = [schema]
    for _ in range(2 * MAX_DEPTH):
        level = [
            child
            for value in level
            for child in (value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ())
        ]
        if not level:
            return
    raise InvalidRequest(f"{param} is nested too deeply, allowed are {MAX_DEPTH} levels", param=param)
