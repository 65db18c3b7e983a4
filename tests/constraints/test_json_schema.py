"""Schemas as programs really have them: the library compiles their supported forms, and answers fit the originals."""

from __future__ import annotations

import enum
import ipaddress
import json
import random
import time
from collections.abc import Callable, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal
from uuid import UUID

import jsonschema
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema_specifications import REGISTRY
from pydantic import BaseModel, Field

from service.constraints import constraint as constraint_module
from service.constraints.constraint import MAX_TOOL_SCHEMAS, Constraint, ToolCallForm
from service.constraints.grammars import compile_grammar
from service.constraints.json_schema import FORMATS, UNSUPPORTED, supported_schema
from service.constraints.references import objects_of
from service.constraints.room import Room
from service.errors import InvalidRequest
from tests.constraints.checkpoints import DEMO, accepts, lenient, library_takes, vocabulary
from tests.constraints.walks import answers

ZOD: dict[str, Any] = json.loads((Path(__file__).parent / "zod.json").read_text("utf-8"))["types"]

_VALIDATORS = jsonschema.Draft202012Validator.VALIDATORS
#: of `oneOf` an answer may fit several parts
_Validator = jsonschema.validators.extend(jsonschema.Draft202012Validator, {"oneOf": _VALIDATORS["anyOf"]})


def validate(answer: Any, schema: Any) -> None:
    """ValidationError if an answer does not fit a schema."""
    _Validator(schema).validate(answer)


# --- the tables --------------------------------------------------------------------------------------


def _keywords() -> set[str]:
    """All keywords of the newest draft, by its own definition."""
    core = "https://json-schema.org/draft/2020-12/meta/"
    names = ("core", "applicator", "unevaluated", "validation", "format-annotation", "content", "meta-data")
    return {keyword for name in names for keyword in REGISTRY.contents(core + name)["properties"]}


#: a value for each keyword that the library refuses, and for the others that need one of a type
_VALUES: dict[str, Any] = {
    "$ref": "#/$defs/a", "$dynamicRef": "#", "$recursiveRef": "#", "$schema": "https://json-schema.org/draft/2020-12/schema",
    "$vocabulary": {}, "type": "string", "enum": ["a"], "const": "a", "required": ["a"], "allOf": [{}], "anyOf": [{}],
    "oneOf": [{}], "prefixItems": [{}], "uniqueItems": True, "pattern": "a", "format": "date",
    "dependentRequired": {"a": ["b"]}, "dependencies": {"a": ["b"]},
    "if": {"minimum": 3}, "then": {"maximum": 5}, "not": {"minimum": 3}, "items": {},
}  # fmt: skip
_COUNTS = {"multipleOf", "maximum", "minimum", "exclusiveMaximum", "exclusiveMinimum"}


def _with(keyword: str) -> dict[str, Any]:
    value = _VALUES.get(keyword)
    if value is None and (keyword in _COUNTS or keyword.startswith(("max", "min"))):
        value = 1
    if value is None:
        by_name = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
        value = {"a": {"type": "string"}} if keyword in by_name else "a" if keyword.startswith("$") else {"minimum": 3}
    types = ["string", "array", "object", "number"]
    return {"description": "a", "type": types, "$defs": {"a": {"type": types}}, keyword: value}


def test_the_unsupported_keywords_are_those_that_the_library_refuses() -> None:
    keywords = _keywords() | UNSUPPORTED
    assert len(keywords) > 55
    assert {keyword for keyword in keywords if not library_takes(_with(keyword))} == UNSUPPORTED


def test_the_formats_are_those_that_the_library_knows() -> None:
    names = {
        "idn-email", "iri", "json-pointer", "regex", "uri-reference", "uri-template", "path", "password", "binary",
        *FORMATS,
    }  # fmt: skip
    names |= {part.get("format") for schema in ZOD.values() for part in schema["properties"].values()} - {None}
    assert len(names) > 30
    assert {name for name in names if library_takes({"type": "string", "format": name})} == FORMATS


# --- each change -------------------------------------------------------------------------------------

_NULL = {"type": "null"}
_OBJECT = {"type": "object", "properties": {"a": {"type": "integer"}, "b": _NULL}}
_NAMES = {"enum": ["a", "b"]}


def _requiring(*names: str) -> dict[str, Any]:
    return {"type": "object", "properties": dict.fromkeys(names, _NULL), "required": [*names]}


@pytest.mark.parametrize(
    ("schema", "ignored", "allowed", "refused"),
    [
        # what has no effect, and what is only an annotation
        ({"type": "array", "uniqueItems": False, "maxItems": 1}, "", ["[]"], ["[1, 2]"]),
        ({"type": "string", "format": "poem"}, "", ['"a"'], ["1"]),
        ({"type": "null", "if": _NULL}, "", ["null"], ["1"]),
        ({"type": "null", "then": _NULL, "minContains": 2}, "", ["null"], ["1"]),
        # what is dropped
        ({"type": "array", "uniqueItems": True, "items": {"const": 1}}, "uniqueItems", ["[1, 1]"], ["[2]"]),
        ({"not": _NULL, "type": ["null", "boolean"]}, "not", ["null", "true"], ["1"]),
        ({"if": {"const": 1}, "then": {}, "else": {}, "enum": [1]}, "if", ["1"], ["2"]),
        ({"type": "array", "contains": {"const": 1}, "maxContains": 2}, "contains", ["[]"], ["1"]),
        ({**_OBJECT, "dependentRequired": {"a": ["b"]}}, "dependentRequired", ['{"a": 1}'], ['{"b": 1}']),
        ({"properties": {"x": {"$ref": "http://a/b"}}, "type": "object"}, "properties.x.$ref", ['{"x": 1}'], ["1"]),
        ({"$ref": "#/$defs/x", "$defs": {"x": {"$ref": "#/$defs/y"}}}, "$defs.x.$ref", ["1"], []),
        # unions
        ({"oneOf": [{"type": "integer"}, _NULL]}, "", ["1", "null"], ['"a"']),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "", ["1", "1.5"], ["null"]),
        ({"oneOf": [{"enum": [1]}, {"enum": [3]}], "anyOf": [{"maximum": 2}]}, "", ["1"], ["3"]),
        ({"oneOf": [_requiring("a"), _requiring("b")]}, "", ['{"a": null}'], ["{}", '{"a": null, "b": null}']),
        # numbers
        ({"type": "number", "exclusiveMinimum": 0, "maximum": 0.5}, "exclusiveMinimum", ["0.5", "0"], ["1", "-1"]),
        # false
        ({"type": "object", "properties": {"a": {"not": {}}, "b": True}}, "", ['{"b": 1}'], ['{"a": 1}']),
        # objects get no other properties
        (_OBJECT, "", ["{}", '{"a": 1, "b": null}'], ['{"c": 1}', '{"a": 1, "a": 1}']),
        ({"type": "object"}, "", ["{}", '{"c": 1}'], ["1"]),
        ({**_OBJECT, "additionalProperties": True}, "", ['{"c": 1}'], ['{"a": "x"}']),
        ({**_OBJECT, "additionalProperties": _NULL}, "", ['{"c": null}'], ['{"c": 1}']),
        ({**_OBJECT, "required": ["c"]}, "", ['{"c": 1}'], ["{}", '{"d": 1}']),
        ({**_OBJECT, "minProperties": 3, "required": ["a", "b"]}, "", ['{"a": 1, "b": null, "c": 1}'], ["{}"]),
        ({**_OBJECT, "unevaluatedProperties": False}, "", ["{}"], ['{"c": 1}']),
        (
            {"type": "object", "patternProperties": {"^x": _NULL}, "properties": {"a": True}},
            "", ['{"a": 1, "xy": null}'], ['{"b": 1}', '{"xy": 1}'],
        ),
        # several schemas for one object
        ({**_OBJECT, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}, "", ['{"a": 1}'], ["{}", '{"c": 1}']),
        ({"allOf": [{"properties": {"x": True}, "type": "object"}, _OBJECT]}, "", ['{"x": 1, "a": 1}'], ['{"c": 1}']),
        (
            {"allOf": [{"$ref": "#/$defs/base"}], "properties": {"x": _NULL}, "$defs": {"base": _OBJECT}},
            "", ['{"a": 1, "x": null}', '{"a": 1}'], ['{"x": 1}', '{"c": 1}'],
        ),
        ({"allOf": [_OBJECT, _requiring("c")], "unevaluatedProperties": False}, "", ['{"c": null}'], ['{"d": 1}']),
        (
            {**_OBJECT, "anyOf": [{"properties": {"c": _NULL}}, True], "unevaluatedProperties": False},
            "unevaluatedProperties", ['{"a": 1}'], ['{"d": 1}'],
        ),
        ({"allOf": [{**_OBJECT, "additionalProperties": True}, {"properties": {}}]}, "", ['{"c": 1}'], ['{"a": ""}']),
        # names
        ({"type": "object", "propertyNames": _NAMES, "additionalProperties": _NULL}, "", ['{"b": null}'], ['{"b": 1}']),
        ({"type": "object", "propertyNames": {"pattern": "^k[0-9]$"}}, "", ['{"k1": 1}'], ['{"k": 1}']),
        ({"type": "object", "propertyNames": {"maxLength": 3}}, "propertyNames", ['{"abcd": 1}'], ["1"]),
        (
            {
                "type": "object", "propertyNames": _NAMES, "additionalProperties": {
                    "type": "object", "propertyNames": _NAMES, "required": ["a"], "additionalProperties": _NULL,
                },
            },
            "", ['{"a": {"a": null}, "b": {"a": null, "b": null}}'], ['{"a": {"c": null}}', '{"b": {}}'],
        ),
        (
            {"type": "object", "propertyNames": {"$ref": "#/$defs/n"}, "$defs": {"n": {"title": "N", **_NAMES}}},
            "", ['{"a": 1, "b": 2}'], ['{"c": 1}'],
        ),
        # numbers of properties
        ({**_OBJECT, "minProperties": 1}, "", ['{"b": null}'], ["{}"]),
        ({**_OBJECT, "minProperties": 2}, "minProperties", ['{"b": null}'], ['{"c": 1}']),
        ({**_OBJECT, "maxProperties": 2}, "", ['{"b": null}'], ['{"c": 1}']),
        ({**_OBJECT, "maxProperties": 1, "minProperties": 1}, "", ['{"b": null}'], ["{}", '{"a": 1, "b": null}']),
        ({"type": "object", "minProperties": 1, "additionalProperties": _NULL}, "", ['{"x": null}'], ["{}"]),
    ],
)  # fmt: skip
def test_a_schema_is_adapted(schema: Any, ignored: str, allowed: list[str], refused: list[str]) -> None:
    before = json.dumps(schema)
    assert supported_schema(schema).ignored == ((ignored,) if ignored else ())
    grammar = lenient(schema)
    assert [text for text in allowed if not accepts(grammar, text)] == []
    assert [text for text in refused if accepts(grammar, text)] == []
    assert json.dumps(schema) == before
    if ignored:
        with pytest.raises(
            InvalidRequest, match=f"^form cannot be used: .*{ignored.rpartition('$')[2]} is not supported"
        ):
            Constraint.json(schema, "form")
    else:
        for answer in answers(schema):
            validate(answer, schema)


def _random(rng: random.Random, depth: int = 2) -> Any:
    """An object's schema with schemas for the same value, and definitions that are extended and referred to."""
    schema: dict[str, Any] = {"type": "object"} if rng.random() < 0.7 else {}
    names = rng.sample("abcdef", rng.randint(0, 3))
    if names or rng.random() < 0.5:
        schema["properties"] = {name: _random(rng, depth - 1) if depth else {"enum": [1, 2]} for name in names}
    if rng.random() < 0.3:
        schema["required"] = rng.sample("abcdef", 1)
    if rng.random() < 0.2:
        schema["additionalProperties"] = rng.choice([True, False, _NULL])
    if depth and rng.random() < 0.5:
        parts = [_random(rng, depth - 1) for _ in range(rng.randint(1, 2))]
        parts += [{"$ref": f"#/$defs/{rng.choice('xy')}"}] if rng.random() < 0.5 else []
        schema[rng.choice(["allOf", "anyOf", "oneOf"])] = parts
    if rng.random() < 0.2:
        schema["$ref"] = f"#/$defs/{rng.choice('xy')}"
    items = list(schema.items())
    rng.shuffle(items)
    return dict(items)


def test_objects_stay_possible_and_answers_fit_the_original() -> None:
    compared = exact = 0
    for seed in range(80):
        rng = random.Random(seed)
        definitions = {name: {"type": "object", "properties": {name: _NULL, "a": {"enum": [1]}}} for name in "xy"}
        schema = {**_random(rng), "$defs": definitions}
        if library_takes(schema):
            compared += 1
            made = answers(schema, 3)
            if not supported_schema(schema).ignored:
                for answer in made:
                    validate(answer, schema)
                exact += len(made)
    assert compared > 40
    assert exact > 40


# --- types of programs -------------------------------------------------------------------------------


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]
    name: str


class Node(BaseModel):
    value: int
    next: Node | None = None


PYDANTIC: dict[str, Any] = {
    str(kind): kind
    for kind in (
        pydantic.FilePath, Path, bytes, pydantic.SecretStr, pydantic.Base64Str, pydantic.IPvAnyAddress,
        ipaddress.IPv4Network, dict[Color, int], dict[str, int], datetime, date, timedelta, UUID, Decimal,
        pydantic.AnyUrl, pydantic.Json, Node, Color, Literal["a", 1], int | str | None, list[Cat], tuple[int, str],
        Annotated[Cat | Dog, Field(discriminator="kind")], Annotated[str, Field(pattern="^[a-z]+$", max_length=5)],
        Annotated[list[int], Field(min_length=1, max_length=3)], Annotated[int, Field(gt=0, lt=10)], dict,
    )
}  # fmt: skip


@pytest.mark.parametrize("name", PYDANTIC)
def test_types_of_pydantic_are_supported(name: str) -> None:
    schema = pydantic.create_model("Value", value=(PYDANTIC[name], ...)).model_json_schema()
    assert supported_schema(schema).ignored == ()
    compile_grammar(Constraint.json(schema, "form"), vocabulary(DEMO))
    for answer in answers(schema):
        validate(answer, schema)


@pytest.mark.parametrize("name", ZOD)
def test_types_of_zod_are_supported(name: str) -> None:
    look_around = {f"properties.value.{keyword}" for keyword in ("pattern", "exclusiveMinimum")}
    schema = ZOD[name]
    assert look_around >= set(supported_schema(schema).ignored)
    assert not supported_schema(schema).ignored or name in {"emoji", "duration", "hostname", "regex", "positive"}
    assert lenient(schema)


# --- limits ------------------------------------------------------------------------------------------

_LETTERS = [f"{number:x}" for number in range(3000)]


def _nested(depth: int, **keywords: Any) -> Any:
    """A schema within itself: the value of `additionalProperties` beside other keywords."""
    schema: Any = {"type": "integer"}
    for _ in range(depth):
        schema = {"type": "object", **keywords, "additionalProperties": schema}
    return schema


_MANY = {"type": "object", "properties": {f"p{n}": _NULL for n in range(1000)}}
LARGE: dict[str, Any] = {
    "many objects": {"anyOf": [{"properties": {"a": {"type": "string"}}, "required": ["a"]}] * 4000},
    "a union of unions": {"oneOf": [{"oneOf": [{"oneOf": [{"minimum": 1}] * 20}] * 20}] * 20},
    "many extensions": {"$defs": {"a": _MANY}, "anyOf": [{"$ref": "#/$defs/a", "required": ["b"]}] * 2000},
    "large values of many names": {
        "propertyNames": {"enum": [f"{n}" for n in range(9000)]}, "additionalProperties": {"description": "a" * 9000},
    },
    "names of names": _nested(60, propertyNames={"enum": ["a", "b"]}),
    "names of names by reference": {
        "$defs": {"n": {"enum": ["a", "b", "c"]}}, **_nested(50, propertyNames={"$ref": "#/$defs/n"}),
    },
    "names by reference": {
        "$defs": {"n": {"enum": _LETTERS}}, "anyOf": [{"propertyNames": {"$ref": "#/$defs/n"}}] * 2000,
    },
    "required names by reference": {
        "$defs": {"n": {"required": _LETTERS}}, "anyOf": [{"$ref": "#/$defs/n", "properties": {}}] * 2000,
    },
    "long names by reference": {
        "$defs": {"n": {"required": [letter * 2000 for letter in "abcdef"]}},
        "anyOf": [{"$ref": "#/$defs/n", "properties": {}}] * 2000,
    },
    "long paths": {"properties": {"a" * 90_000: {"anyOf": [{"uniqueItems": True}] * 3000}}},
    "deep": json.loads('{"items": ' * 120 + "{}" + "}" * 120),
    "a loop": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a", "required": []}}},
    "an object of itself": {"allOf": [{"$ref": "#"}, {"properties": {"a": {"$ref": "#"}}}], "properties": {}},
    "wrong types": {
        "properties": [], "required": 3, "anyOf": 1, "oneOf": {}, "items": 3, "$ref": 4, "pattern": [], "enum": 3,
        "patternProperties": 1, "propertyNames": [], "allOf": "a", "minProperties": "a", "type": 3, "const": {},
    },
}  # fmt: skip


@pytest.mark.parametrize("name", LARGE)
def test_a_schema_of_any_size_takes_little_time_and_stays_small(name: str) -> None:
    text = json.dumps(LARGE[name])
    assert len(text) < MAX_TOOL_SCHEMAS
    started = time.thread_time()
    supported = supported_schema(json.loads(text))
    assert time.thread_time() - started < 1.0
    assert len(json.dumps(supported.schema)) < 4 * MAX_TOOL_SCHEMAS
    assert sum(map(len, supported.ignored)) < 4 * MAX_TOOL_SCHEMAS


def test_schemas_that_take_too_long_are_refused_by_their_field(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter(range(0, 99, 3))
    monkeypatch.setattr(constraint_module, "Room", lambda: Room(lambda: float(next(seconds))))
    with pytest.raises(InvalidRequest, match="form takes more than 2 s of CPU time to read"):
        Constraint.json({"type": "object"}, "form")


def test_tools_share_the_room_of_one_request() -> None:
    names = {"propertyNames": {"enum": _LETTERS[:200]}, "additionalProperties": {"type": "integer"}}
    forms = [ToolCallForm(f"f{number}", "", names, "") for number in range(128)]
    made = Constraint.calls(forms, opening="<", between=None, required=True)
    assert len(made.source) < 4 * MAX_TOOL_SCHEMAS
    assert made.ignored == ("tools.propertyNames",)


#: a schema around another one, for every keyword that has schemas within
_AROUND: tuple[Callable[[Any], Any], ...] = (
    lambda inner: {"propertyNames": {"enum": ["a", "b", "c"]}, "additionalProperties": inner},
    lambda inner: {"propertyNames": {"const": "a"}, "additionalProperties": inner, "properties": {"b": True}},
    lambda inner: {"propertyNames": {"pattern": "^[[]$"}, "additionalProperties": inner},
    lambda inner: {"patternProperties": {"(?=a)": inner, "b": True}, "additionalProperties": False},
    lambda inner: {"patternProperties": {r"\d": True, "[0-9]": inner}},
    lambda inner: {"properties": {"a": inner, "b": {"not": {}}}, "minProperties": 3, "required": ["c"]},
    lambda inner: {"allOf": [{"required": ["a"]}, inner], "properties": {"d": True}},
    lambda inner: {"anyOf": [inner, {"properties": {"b": True}}], "required": ["e"]},
    lambda inner: {"oneOf": [{"$ref": "#/$defs/a"}, inner], "properties": {"f": True}},
    lambda inner: {"$ref": "#/$defs/a", "properties": {"a": inner}, "unevaluatedProperties": False},
    lambda inner: {"$defs": {"a": inner}, "$ref": "#"},
    lambda inner: {"prefixItems": [inner], "items": False, "minItems": 1},
    lambda inner: {"if": {"const": 1}, "then": inner, "else": {"items": True}},
    lambda inner: {"dependentSchemas": {"a": inner}, "not": {"type": "null"}},
    lambda inner: {"items": inner, "contains": {"const": {"a": 1}}, "exclusiveMinimum": 0, "maximum": 0.5},
)


@given(st.lists(st.sampled_from(_AROUND), min_size=1, max_size=30))
def test_any_nesting_of_keywords_stays_linear(around: Sequence[Callable[[Any], Any]]) -> None:
    schema: Any = {"type": "integer"}
    for wrap in around:
        schema = wrap(schema)
    root = {"$defs": {"a": {"properties": {"x": True}, "required": ["y", "z"]}}, **schema}
    supported = supported_schema(root).schema
    assert len(json.dumps(supported)) <= 8 * len(json.dumps(root))
    assert sum(1 for _ in objects_of(supported)) <= 8 * sum(1 for _ in objects_of(root))


_KEYS = st.sampled_from(sorted({*_keywords(), *UNSUPPORTED, "definitions", "additionalItems", "a"}))
_TEXTS = st.sampled_from(["a", "object", "#", "#/$defs/a", "(?=a)"])
_JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | _TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=4),
    max_leaves=20,
)


@given(_JUNK)
def test_nonsense_never_fails(schema: Any) -> None:
    text = json.dumps(schema)
    supported = supported_schema(json.loads(text))
    assert isinstance(supported.schema, dict) or not isinstance(schema, (dict, bool))
    again = supported_schema(json.loads(json.dumps(supported.schema)))
    assert again == supported_schema(again.schema)
    assert again.ignored == ()
