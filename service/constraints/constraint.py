"""A constraint as a request has it. Its size is checked here, its meaning by the compiler.

The gateway makes it from a request's fields. Its limits bound the time and memory of compiling it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from service.data import Data, Private
from service.errors import InvalidRequest

ConstraintKind = Literal["json", "regex", "choice", "grammar", "calls"]

MAX_SCHEMA, MAX_REGEX, MAX_GRAMMAR, MAX_CHOICES = 64 * 1024, 4096, 16 * 1024, 1000
#: the most characters of the schemas of all tools of a request
MAX_TOOL_SCHEMAS = 256 * 1024
#: the most schemas within each other, as literal JSON
MAX_DEPTH = 64

_ANY_OBJECT: Mapping[str, Any] = {"type": "object"}


@dataclass(frozen=True, slots=True)
class Owner:
    """The owner of a constraint. `tenant`: whose CPU time it uses. `salt`: only owners of one salt share a grammar."""

    tenant: str = ""
    salt: str = ""


NOBODY: Final = Owner()


class Lead(Data, frozen=True):
    """A text before the constrained text, such as reasoning: from `begin` to `end`, then `gap`.

    `in_prompt`: whether the prompt has its beginning, so that it is required. Else it is optional.
    """

    begin: str
    end: str
    gap: str
    in_prompt: bool = False


@dataclass(frozen=True, slots=True)
class CallTexts:
    """The texts around tool calls: `opening`, a call, `between` before each further call, `closing`."""

    opening: str
    between: str
    closing: str


@dataclass(frozen=True, slots=True)
class ToolCallForm:
    """A call of the tool `name`: `head`, its arguments as JSON that fits `schema`, `tail`."""

    name: str
    head: str
    schema: Mapping[str, Any]
    tail: str


class Constraint(Data, frozen=True):
    """A constraint on a whole answer. `source`: a schema or a list of texts as JSON, a pattern, a grammar.

    `param`: the field of the request, which errors name. `lead`: the text before the constrained text. `content`: the
    constraint on an answer without calls, for the kind `calls`.
    """

    kind: ConstraintKind
    source: Private[str]
    param: str
    lead: Lead | None = None
    content: Constraint | None = None

    @classmethod
    def json(cls, schema: Mapping[str, Any] | bool | None, param: str) -> Constraint:
        """JSON that fits a schema; None: any JSON object. InvalidRequest if the schema is too large."""
        _check_depth(schema, param)
        source = json.dumps(_ANY_OBJECT if schema is None else schema, ensure_ascii=False, separators=(",", ":"))
        return cls("json", _within(source, MAX_SCHEMA, param), param)

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
    def calls(
        cls,
        texts: CallTexts,
        forms: Sequence[ToolCallForm],
        *,
        required: bool,
        parallel: bool,
        content: Constraint | None = None,
    ) -> Constraint:
        """Calls of tools, after a text or none. InvalidRequest if the schemas are too large.

        `required`: calls only. `parallel`: several calls. `content`: the constraint on an answer without calls; None:
        any text that does not begin a call.
        """
        for form in forms:
            _check_depth(form.schema, "tools")
        source = {
            "texts": [texts.opening, texts.between, texts.closing],
            "forms": [[form.name, form.head, form.schema, form.tail] for form in forms],
            "required": required,
            "parallel": parallel,
        }
        written = json.dumps(source, ensure_ascii=False, separators=(",", ":"))
        return cls("calls", _within(written, MAX_TOOL_SCHEMAS, "tools"), "tools", content=None if required else content)


def _within(source: str, limit: int, param: str) -> str:
    if len(source) > limit:
        raise InvalidRequest(f"{param} has {len(source)} characters, allowed are {limit}", param=param)
    return source


def _check_depth(schema: object, param: str) -> None:
    """InvalidRequest if values are nested too deeply. Goes down level by level, without recursion."""
    level: list[object] = [schema]
    for _ in range(2 * MAX_DEPTH):
        level = [child for value in level for child in _children(value)]
        if not level:
            return
    raise InvalidRequest(f"{param} is nested too deeply, allowed are {MAX_DEPTH} levels", param=param)


def _children(value: object) -> Iterable[object]:
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, list) else ()
