"""The fields of a request that constrain its answer: their schemas, and the `Constraint` that they mean.

Both APIs have these fields. The replica compiles the constraint; here only forms and sizes are checked.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field
from pydantic.config import JsonDict

from service.constraints.constraint import MAX_CHOICES, MAX_GRAMMAR, MAX_REGEX, Constraint
from service.errors import InvalidRequest

FIELDS = ("response_format", "regex", "choice", "grammar")

_SCHEMA_PARAM = "response_format.json_schema.schema"


class JsonSchemaFormat(BaseModel):
    """A JSON schema as OpenAI's clients send it. `strict`: changes nothing, the schema always holds."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    name: Annotated[str, Field(max_length=64)] | None = None
    description: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema", description="default: any JSON object")
    strict: bool | None = None


#: what `_of_format` refuses, for readers of the OpenAPI document
_SCHEMA_ONLY_WITH_ITS_TYPE: JsonDict = {
    "if": {"properties": {"type": {"const": "json_schema"}}},
    "then": {"required": ["json_schema"], "properties": {"json_schema": {"type": "object"}}},
    "else": {"properties": {"json_schema": {"type": "null"}}},
}


class ResponseFormat(BaseModel):
    """The form of the answer, as OpenAI names it. `json_object`: any JSON object."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, json_schema_extra=_SCHEMA_ONLY_WITH_ITS_TYPE)

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = Field(None, description="with type json_schema only")


Regex = Annotated[str, Field(min_length=1, max_length=MAX_REGEX)]
Choice = Annotated[
    list[Annotated[str, Field(min_length=1)]], Field(min_length=1, max_length=MAX_CHOICES, fail_fast=True)
]
GrammarText = Annotated[str, Field(min_length=1, max_length=MAX_GRAMMAR)]


class Constrained(Protocol):
    """A request with these fields."""

    @property
    def response_format(self) -> ResponseFormat | None:
        """The form of the answer."""

    @property
    def regex(self) -> str | None:
        """A regular expression that matches the whole answer."""

    @property
    def choice(self) -> list[str] | None:
        """The texts from which the answer is chosen."""

    @property
    def grammar(self) -> str | None:
        """A grammar of the answer."""

    @property
    def ignore_eos(self) -> bool:
        """Whether the end token does not end the answer."""


def constraint_of(request: Constrained) -> Constraint | None:
    """The constraint that a request asks for. InvalidRequest if it asks for two, or for no end."""
    given = [name for name in FIELDS if getattr(request, name) is not None]
    if len(given) > 1:
        raise InvalidRequest(f"{' and '.join(given)} are given, allowed is one of {', '.join(FIELDS)}", param=given[-1])
    constraint = _constraint(request)
    if constraint is not None and request.ignore_eos:
        raise InvalidRequest(
            f"ignore_eos is true, which {given[0]} does not allow: the answer has an end", param="ignore_eos"
        )
    return constraint


def _constraint(request: Constrained) -> Constraint | None:
    if request.regex is not None:
        return Constraint.regex(request.regex)
    if request.choice is not None:
        return Constraint.choice(request.choice)
    if request.grammar is not None:
        return Constraint.grammar(request.grammar)
    return None if request.response_format is None else _of_format(request.response_format)


def _of_format(form: ResponseFormat) -> Constraint | None:
    wanted = form.json_schema
    if (form.type == "json_schema") != (wanted is not None):
        is_there = "is missing" if wanted is None else "is given"
        raise InvalidRequest(
            f"response_format.type is {form.type!r} and response_format.json_schema {is_there}; "
            "type json_schema has one, others have none",
            param="response_format.json_schema",
        )
    if form.type == "text":
        return None
    return Constraint.json(wanted.schema_ if wanted else None, _SCHEMA_PARAM if wanted else "response_format")
