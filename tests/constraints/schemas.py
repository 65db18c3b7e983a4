"""Schemas to constrain answers with: random ones, and hard ones made by hand. All of them have short answers."""

import random
from typing import Any

Schema = dict[str, Any]

_NAMES = ("a", "b", "name", "x y", 'q"uote', "é", "ключ", "age", "\\", "n\nl", "id", "")


def random_schema(rng: random.Random, depth: int = 3) -> Schema:
    """A schema that the library supports."""
    kinds = [_integer, _number, _string, _constants, _small]
    if depth:
        kinds += [_object, _object, _array, _array, _union]
    return rng.choice(kinds)(rng, depth)


def _integer(rng: random.Random, depth: int) -> Schema:
    low = rng.choice([-1000, -7, 0, 3])
    schema: Schema = {"type": "integer", "minimum": low, "maximum": low + rng.choice([1, 9, 250, 123456])}
    return schema | ({"multipleOf": rng.choice([2, 5])} if rng.random() < 0.2 and schema["maximum"] > low + 9 else {})


def _number(rng: random.Random, depth: int) -> Schema:
    low = rng.choice([-2, 0, 0.5])
    return {"type": "number", rng.choice(["minimum", "exclusiveMinimum"]): low, "maximum": low + rng.choice([1.5, 40])}


def _string(rng: random.Random, depth: int) -> Schema:
    return rng.choice(
        [
            {"type": "string", "maxLength": rng.choice([0, 1, 7, 20])},
            {"type": "string", "minLength": 2, "maxLength": rng.choice([2, 5])},
            {"type": "string", "pattern": rng.choice(["^[a-f]{2,5}$", r"^\d{3}-\d{4}$", "^(ab|cd)+e?$", "^[^a-z]{1,4}$"])},  # noqa: E501
            {"type": "string", "format": rng.choice(["date", "uuid", "ipv4", "time"])},
        ]
    )  # fmt: skip


def _constants(rng: random.Random, depth: int) -> Schema:
    values = ["red", "green", "a b", "", "\u0000", 'q"', "é😀", 1, -2.5, True, False, None, [1, "a"], {"k": [None]}]
    return {"enum": rng.sample(values, rng.randint(1, 5))} if rng.random() < 0.8 else {"const": rng.choice(values)}


def _small(rng: random.Random, depth: int) -> Schema:
    return rng.choice([{"type": "boolean"}, {"type": "null"}, {"type": ["boolean", "null"]}])


def _object(rng: random.Random, depth: int) -> Schema:
    names = rng.sample(_NAMES, rng.randint(0, 4))
    schema: Schema = {
        "type": "object",
        "properties": {name: random_schema(rng, depth - 1) for name in names},
        "required": [name for name in names if rng.random() < 0.7],
        "additionalProperties": False,
    }
    return schema


def _array(rng: random.Random, depth: int) -> Schema:
    least = rng.randint(0, 2)
    schema: Schema = {"type": "array", "minItems": least, "maxItems": least + rng.randint(0, 2)}
    if rng.random() < 0.3:
        parts = [random_schema(rng, depth - 1) for _ in range(rng.randint(1, 2))]
        return {"type": "array", "prefixItems": parts, "items": False, "minItems": len(parts)}
    return schema | {"items": random_schema(rng, depth - 1)}


def _union(rng: random.Random, depth: int) -> Schema:
    return {"anyOf": [random_schema(rng, depth - 1) for _ in range(rng.randint(2, 3))]}


def _nested(depth: int, inner: Schema) -> Schema:
    for _ in range(depth):
        inner = {"type": "object", "properties": {"a": inner}, "required": ["a"], "additionalProperties": False}
    return inner


def _listed(depth: int) -> Schema:
    inner: Schema = {"type": "boolean"}
    for _ in range(depth):
        inner = {"type": "array", "items": inner, "minItems": 1, "maxItems": 1}
    return inner


def _choice(*schemas: Schema) -> Schema:
    return {"anyOf": list(schemas)}


def _of(name: str, schema: Schema, **more: Any) -> Schema:
    return {"type": "object", "properties": {name: schema}, "required": [name], "additionalProperties": False, **more}


_TREE: Schema = {
    "$ref": "#/$defs/node",
    "$defs": {
        "node": {
            "type": "object",
            "properties": {"v": {"enum": [0, 1]}, "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]}},
            "required": ["v", "next"],
            "additionalProperties": False,
        }
    },
}

_PATTERNS = (
    "^a{3}$", "^(a|b){4}$", "^[0-9]{1,3}(\\.[0-9]{1,3}){3}$", "^\\+?[0-9]{2,4}$", "^[A-Z][a-z]{0,6}$", "^x?y?z?$",
    "^(foo|bar|foobar)$", "^(aa|ab|ba){2}$", "^[^\"\\\\]{2}$", "^\\u00e9{2}$", "^[\\u4e00-\\u4e10]{1,3}$", "^(a(b(c)?)?)?$",  # noqa: E501
    "^[a-z]+@[a-z]+\\.(com|org)$", "^0x[0-9a-f]{2,8}$", "^(true|false)$", "^ {0,3}$", "^\\t$", "^[\\s]{1,2}$", "^.{3}$",
    "^-?(0|[1-9][0-9]{0,4})$", "^(\\(\\)){1,3}$", "^[\\[\\]{}]{2}$", "^/[a-z/]{0,5}$", "^\\$[0-9]+\\.[0-9]{2}$",
)  # fmt: skip

_RANGES: tuple[tuple[Any, Any], ...] = (
    (0, 0), (1, 1), (-1, 1), (-1, -1), (9, 10), (99, 101), (-10, -9), (-100, 100), (0, 255), (1000, 1999),
    (0, 10**9), (123456789, 123456799), (-5, 0), (10, 19), (7, 70),
)  # fmt: skip

_FORMATS = ("date", "time", "date-time", "uuid", "ipv4", "ipv6", "email", "hostname", "duration")

_LITERALS: tuple[Any, ...] = (
    "", "a", " ", '"', "\\", "/", "\n", "\t", "\u0000", "\u001f", "\u007f", "é", "e\u0301", "中文", "😀", "👩🏽‍🚀", "\u202e", "null", "1",  # noqa: E501
    "{", "}", "<|", "end|>", "w5 w6", "a" * 60, 0, -1, 1.5, True, None, [], {}, [[]], {"": ""}, [1, [2, [3]]],
)  # fmt: skip

HARD: tuple[Schema, ...] = (
    *(_of("p", {"type": "string", "pattern": pattern}) for pattern in _PATTERNS),
    *({"type": "integer", "minimum": low, "maximum": high} for low, high in _RANGES),
    *({"type": "number", "minimum": low, "maximum": high} for low, high in _RANGES),
    *(_of("f", {"type": "string", "format": name}) for name in _FORMATS),
    *({"const": value} for value in _LITERALS),
    *({"enum": [value, "z"]} for value in _LITERALS[::2]),
    *(_of(value, {"type": "boolean"}) for value in _LITERALS if isinstance(value, str)),
    *(_nested(depth, {"type": "null"}) for depth in (1, 2, 5, 9)),
    *(_listed(depth) for depth in (1, 3, 8, 15)),
    *({"type": "string", "minLength": length, "maxLength": length} for length in (0, 1, 2, 15, 16, 17)),
    *({"type": "array", "items": {"enum": [1, 2]}, "minItems": n, "maxItems": n + m} for n in (0, 1, 5) for m in (0, 3)),  # noqa: E501
    *({"type": "integer", "minimum": 0, "maximum": 99, "multipleOf": n} for n in (2, 3, 5, 7, 10)),
    _choice({"type": "null"}, {"type": "integer", "minimum": 0, "maximum": 9}),
    _choice({"const": "a"}, {"const": "ab"}, {"const": "abc"}),
    _choice(_of("a", {"const": 1}), _of("a", {"const": 2}), _of("b", {"type": "null"})),
    _choice(_nested(2, {"const": 1}), _nested(2, {"const": 2})),
    {"oneOf": [{"type": "boolean"}, {"type": "integer", "minimum": 5, "maximum": 6}]},
    {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 12}]},
    {"allOf": [_of("a", {"type": "integer", "minimum": 1}), {"properties": {"a": {"maximum": 3}}}]},
    {"type": "object", "minProperties": 1, "maxProperties": 2, "additionalProperties": {"type": "boolean"},
     "patternProperties": {"^k[0-9]$": {"type": "null"}}},
    {"type": "object", "patternProperties": {"^[ab]$": {"enum": [0]}}, "additionalProperties": False},
    {"type": "object", "properties": {"a": {"enum": [1]}, "b": {"enum": [2]}, "c": {"enum": [3]}},
     "additionalProperties": False},
    {"type": "object", "properties": {"a": {"const": "x"}}, "required": ["a", "b"],
     "additionalProperties": {"const": 0}},
    {"type": ["integer", "string", "null"], "maximum": 5, "minimum": 0, "maxLength": 3},
    {"type": "array", "prefixItems": [{"const": 1}, {"type": "boolean"}], "items": {"type": "null"}, "maxItems": 4},
    {"type": "array", "items": _TREE["$defs"]["node"]["properties"]["v"], "maxItems": 2},
    {"$ref": "#/definitions/x", "definitions": {"x": {"type": "boolean"}}},
    {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/c"}, "c": {"enum": [7, "7"]}}},
    {"$ref": "#/$defs/odd~1name", "$defs": {"odd/name": {"const": "~"}}},
    {"$defs": {"list": _choice({"type": "null"}, _of("next", {"$ref": "#/$defs/list"}))}, "$ref": "#/$defs/list"},
    {"enum": [1, 1.0, "1", True, None, [1], {"a": 1}]},
    {"const": {"b": 1, "a": [{"c": None}, -0.5]}},
    {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
    {"type": "integer", "exclusiveMinimum": -1, "exclusiveMaximum": 1},
    {"type": "number", "minimum": -1e-3, "maximum": 1e-3},
    {"type": "integer", "minimum": -200, "maximum": 200, "multipleOf": 25},
    {"type": "array", "items": False, "prefixItems": [{"const": "only"}]},
    {"type": "array", "items": {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 1},
     "minItems": 2, "maxItems": 2},
    {"type": "object", "properties": {str(n): {"type": "null"} for n in range(12)},
     "required": [str(n) for n in range(0, 12, 5)], "additionalProperties": False},
    {"type": "object", "properties": {"x": False, "y": {"const": 0}}, "required": ["y"], "additionalProperties": False},
    {"type": "object", "properties": {"kind": {"const": "a"}, "a": _choice({"type": "null"}, {"const": 1})},
     "required": ["kind", "a"], "additionalProperties": False},
    _choice(_of("kind", {"const": "circle"}), _of("kind", {"const": "square"}), {"const": "none"}),
    {"allOf": [{"type": "string", "minLength": 2}, {"maxLength": 3}]},
    {"type": "string", "minLength": 1, "maxLength": 2, "pattern": "^[ab]+$"},
    {"type": ["boolean", "array"], "items": {"const": "\u2028"}, "maxItems": 1},
    _TREE,
)  # fmt: skip
