"""Schemas to constrain answers with: random ones, and hard ones made by hand. All of them have short answers."""

import json
import random
from pathlib import Path
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


HARD: tuple[Schema, ...] = tuple(json.loads((Path(__file__).parent / "hard_schemas.json").read_text("utf-8")))
