"""One wrong value of a keyword is ignored alone, and named. The table of values agrees with the library."""

import itertools
import json
import random
from typing import Any

import jsonschema
import pytest

from service.constraints.constraint import Constraint
from service.constraints.finite_patterns import with_names_of_finite_patterns
from service.constraints.grammars import compile_grammar
from service.constraints.json_schema import UNSUPPORTED, supported_schema
from service.constraints.keyword_values import with_usable_values
from service.errors import InvalidRequest
from tests.constraints.checkpoints import DEMO, accepts, lenient, library_takes, vocabulary
from tests.constraints.walks import answers

BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
LENGTHS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
NUMBERS = (2**53, 2**63 - 1, -(2**63), 2**64, 18446744073709552000, 1e30, 3.4028235e38, -3.4028235e38, 1e308, 1e400)
NUMBERS += (1e-10, 1e-50, 1e-60, 1e-300, -1e-300, 5e-324)


@pytest.mark.parametrize("keyword", BOUNDS)
@pytest.mark.parametrize("kind", ["integer", "number"])
def test_the_bounds_that_stay_can_be_compiled(keyword: str, kind: str) -> None:
    for number in NUMBERS:
        _, removed = with_usable_values({"type": kind, keyword: number})
        assert removed or library_takes({"type": kind, keyword: number}), number
        schema = {"type": "object", "properties": {"a": {"type": kind, keyword: number}}, "required": ["a"]}
        assert supported_schema(schema).ignored == ((f"properties.a.{keyword}",) if removed else ())
        assert all(isinstance(answer["a"], (int, float)) for answer in answers(schema, 2))


@pytest.mark.parametrize("keyword", LENGTHS)
def test_lengths(keyword: str) -> None:
    for number in (0, 3, 2.0, 1_000_000):
        usable, removed = with_usable_values({keyword: number})
        assert (usable, removed) == ({keyword: number}, [])
        assert library_takes(usable)
    for number in (*((2**32,) if keyword.endswith("Length") else ()), 2**64, 1e30, -1, 2.5, 1e400):
        assert with_usable_values({keyword: number}) == ({}, [keyword])


def test_steps() -> None:
    for step in (1, 5, 0.1, 0.01, 0.25, 3.141, 1e-5, 99_991):
        assert with_usable_values({"multipleOf": step})[1] == []
    for step in (5, 0.1, 0.01, 0.05, 0.25, 0.75, 3.141, 1.1, 1e-5):
        assert library_takes({"type": "number", "multipleOf": step}), step
    for step in (0, -5, 2**64, 1e-30, 1e-300, 1 / 3, 3.1415, 1e400, 1e9):
        assert with_usable_values({"multipleOf": step}) == ({}, ["multipleOf"])


def test_exclusive_bounds_of_draft_4() -> None:
    assert with_usable_values({"minimum": 5, "exclusiveMinimum": True}) == ({"exclusiveMinimum": 5}, [])
    assert with_usable_values({"maximum": 5, "exclusiveMaximum": False}) == ({"maximum": 5}, [])


@pytest.mark.parametrize(
    "keyword",
    [
        *BOUNDS, *LENGTHS, "type", "enum", "items", "properties", "required", "anyOf", "allOf", "oneOf", "pattern",
        "$ref",
        "additionalProperties", "patternProperties", "prefixItems", "multipleOf", "uniqueItems", "not", "if",
    ],
)  # fmt: skip
def test_a_keyword_with_null_is_ignored_alone(keyword: str) -> None:
    base = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
    base.pop(keyword, None)
    schema = {**base, keyword: None}
    supported, ignored = supported_schema(schema)
    assert ignored == (() if keyword in UNSUPPORTED else (keyword,))
    assert supported == supported_schema(base).schema
    for answer in answers(schema):
        jsonschema.validate(answer, base)


@pytest.mark.parametrize("keyword", ["title", "description", "$schema", "format", "x-order", "deprecated"])
def test_an_annotation_with_null_is_left_out(keyword: str) -> None:
    assert supported_schema({"type": "null", keyword: None}) == ({"type": "null"}, ())


def test_constants_may_be_null_or_huge() -> None:
    assert supported_schema({"const": None}).schema == {"const": None}
    assert answers({"enum": [None]}, 4) == [None] * 4
    assert {float(answer) for answer in answers({"enum": [2**64, 1e30]}, 8)} <= {float(2**64), 1e30}
    assert answers({"type": "null", "default": 1e400, "examples": [-1e400], "x-range": [[1e400]]}, 4) == [None] * 4
    assert list(map(float, answers({"enum": [1e400]}, 1))) == [1.7976931348623157e308]


# --- names and patterns ------------------------------------------------------------------------------

_X_A = {"type": "object", "properties": {"x-a": {"type": "integer", "maximum": 9, "minimum": 3}}, "required": ["x-a"]}
PATTERNS: list[Any] = [
    {**_X_A, "patternProperties": {"^x-a$": {}}},
    {**_X_A, "patternProperties": {"^x-a$": {"maximum": 5}}},
    {**_X_A, "patternProperties": {"^(x-a|b)$": {"maximum": 5}}, "additionalProperties": False},
    {**_X_A, "patternProperties": {"^x[-]a$": {}, "^x-[b-c]$": {"type": "null"}}, "required": ["x-c", "x-b"]},
    {"type": "object", "patternProperties": {"^(a|b)$": {"type": "null"}}, "required": ["a", "b"]},
    {"allOf": [_X_A, {"patternProperties": {"^x-a$": {"maximum": 5}}, "additionalProperties": False}]},
    {"properties": {"o": {**_X_A, "patternProperties": {"^x-a$": {}}}}, "required": ["o"]},
]  # fmt: skip


@pytest.mark.parametrize("schema", PATTERNS)
def test_patterns_beside_names_end_no_answer(schema: Any) -> None:
    made = answers(schema, 16)
    assert made
    assert supported_schema(schema).ignored == ()
    for answer in made:
        jsonschema.validate(answer, schema)


def test_patterns_that_allow_only_names_of_the_schema_stay_small() -> None:
    schema: Any = {"type": "null"}
    for _ in range(20):
        names = {"patternProperties": {"^(a|b)$": schema}, "additionalProperties": False}
        schema = {"type": "object", "required": ["a", "b"], **names}
    rewritten = with_names_of_finite_patterns(schema, lambda *_: True)
    assert len(json.dumps(rewritten)) < 4 * len(json.dumps(schema))
    assert accepts(lenient({"items": schema, "maxItems": 1}), "[]")


def test_a_name_that_is_repeated_counts_once() -> None:
    schema = {"type": "object", "patternProperties": {"^(a|b)$": {"type": "null"}}, "minProperties": 2}
    assert supported_schema(schema).ignored == ("minProperties",)
    assert supported_schema({**schema, "required": ["a"]}).ignored == ()
    for answer in answers({**schema, "required": ["a"]}, 16):
        jsonschema.validate(answer, schema)


def _random(rng: random.Random, depth: int = 2) -> Any:
    names, patterns = ["a", "b", "x-a", "x-b"], ["^a$", "^(a|b)$", "^x-", "^x-[ab]$", "^x-a$|^b$", "b$", "^.$"]
    leaf: list[Any] = [{"enum": [1, 2]}, {"type": "null"}, {"type": "integer", "minimum": 0, "maximum": 5}, True]
    schema: dict[str, Any] = {"type": "object"}

    def value() -> Any:
        return _random(rng, depth - 1) if depth and rng.random() < 0.3 else rng.choice(leaf)

    if rng.random() < 0.7:
        schema["properties"] = {name: value() for name in rng.sample(names, rng.randint(0, 3))}
    if rng.random() < 0.8:
        schema["patternProperties"] = {pattern: value() for pattern in rng.sample(patterns, rng.randint(1, 2))}
    if rng.random() < 0.6:
        schema["required"] = rng.sample(names, rng.randint(0, 2))
    if rng.random() < 0.6:
        schema["additionalProperties"] = rng.choice([False, True, {"type": "null"}])
    if depth and rng.random() < 0.2:
        schema = {"allOf": [schema, _random(rng, 0)]}
    return schema


def test_answers_of_random_names_and_patterns_fit() -> None:
    taken = exact = 0
    for seed in range(60):
        schema = _random(random.Random(seed))
        try:
            lenient(schema)
        except InvalidRequest:  # at once
            continue
        made = answers(schema, 4)
        taken += 1
        if not supported_schema(schema).ignored:
            for answer in made:
                jsonschema.validate(answer, schema)
                exact += 1
    assert taken > 25
    assert exact > 45


# --- bounds ------------------------------------------------------------------------------------------

_TEXTS = ["0", "0.0", "0.1", "0.01", "0.25", "0.5", "0.51", "0.75", "1", "1.0", "1.01", "1.5", "1.51", "2", "10", "11"]
_TEXTS += [f"-{text}" for text in _TEXTS]
_BOUNDS = (None, -2, -1.5, -1, -0.5, 0, 0.25, 1, 1.5, 10)


def fits(value: float, schema: dict[str, Any]) -> bool:
    return (
        value >= schema.get("minimum", value)
        and value <= schema.get("maximum", value)
        and ("exclusiveMinimum" not in schema or value > schema["exclusiveMinimum"])
        and ("exclusiveMaximum" not in schema or value < schema["exclusiveMaximum"])
    )


@pytest.mark.parametrize(("low", "high"), [("minimum", "maximum"), ("exclusiveMinimum", "exclusiveMaximum")])
def test_no_number_out_of_bounds_is_allowed(low: str, high: str) -> None:
    compiled = 0
    for least, most, other in itertools.product(_BOUNDS, _BOUNDS, ("maximum", high)):
        bounds = {low: least, other: most}
        schema = {"type": "number"} | {name: bound for name, bound in bounds.items() if bound is not None}
        try:
            grammar = compile_grammar(Constraint.json(schema, "x"), vocabulary(DEMO))
        except InvalidRequest:
            continue
        compiled += 1
        for text in _TEXTS:
            assert fits(float(text), schema) or not accepts(grammar, text), (schema, text)
    assert compiled > 50


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ({"type": "number", "exclusiveMinimum": 0, "maximum": 0.5}, "exclusiveMinimum"),
        (
            {"properties": {"a": {"anyOf": [{}, {"minimum": -1.5, "exclusiveMaximum": -1}]}}},
            "properties.a.anyOf.1.exclusiveMaximum",
        ),
        ({"properties": {"const": {"exclusiveMinimum": 0, "maximum": 0.5}}}, "properties.const.exclusiveMinimum"),
    ],
)
def test_a_narrow_exclusive_bound_is_not_supported(schema: Any, path: str) -> None:
    assert supported_schema(schema).ignored == (path,)
    with pytest.raises(InvalidRequest, match=path):
        Constraint.json(schema, "x")
    compile_grammar(Constraint.json(schema, "x", strict=False), vocabulary(DEMO))


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "exclusiveMinimum": 0, "maximum": 0.5},
        {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
        {"type": "number", "minimum": 0, "maximum": 0.5},
        {"exclusiveMinimum": True, "minimum": 5},
        {"enum": [{"exclusiveMinimum": 0, "maximum": 0.5}]},
        {"default": {"exclusiveMinimum": 0, "maximum": 0.5}},
        True,
    ],
)
def test_other_bounds_are_supported(schema: Any) -> None:
    assert supported_schema(schema).ignored == ()
