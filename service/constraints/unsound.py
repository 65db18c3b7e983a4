"""Schemas that llguidance 1.9 accepts but does not obey, and keywords without effect that it refuses.

Such schemas are refused, so that every answer fits its schema. Such keywords are removed: programs write them often.

Found by comparing the texts that its grammars allow with the schemas (`tests/constraints/test_unsound.py`):

- A number above a whole number and below the next one: `exclusiveMinimum: 0, maximum: 0.5` allows 0. Likewise below.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

#: keyword -> values without effect
_NO_EFFECT: Mapping[str, tuple[Any, ...]] = {"uniqueItems": (False,), "propertyNames": (True, {}, {"type": "string"})}
#: keywords whose values are not schemas; keywords whose values are schemas by name
_VALUES, _NAMED = {"enum", "const", "default", "examples"}, {"properties", "patternProperties", "$defs", "definitions"}


def simplified(schema: Any) -> Any:
    """The schema without keywords that have no effect."""
    if isinstance(schema, list):
        return [simplified(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {name: _simplified(name, value) for name, value in schema.items() if value not in _NO_EFFECT.get(name, ())}


def _simplified(keyword: str, value: Any) -> Any:
    if keyword in _NAMED and isinstance(value, dict):
        return {name: simplified(item) for name, item in value.items()}
    return value if keyword in _VALUES else simplified(value)


def unsound_part(schema: object) -> str | None:
    """The first part of a schema that the library does not obey, and why; None if it obeys all."""
    level: list[tuple[str, object]] = [("", schema)]
    while level:
        for path, part in level:
            if isinstance(part, dict) and _is_narrow(part):
                return f"at {path or '/'}: an exclusive whole bound within 1 of the other bound is not supported"
        level = [child for path, part in level for child in _parts(path, part)]
    return None


def _parts(path: str, part: object) -> Iterator[tuple[str, object]]:
    if isinstance(part, dict):
        for name, value in part.items():
            if name in _NAMED and isinstance(value, dict):
                yield from ((f"{path}/{name}/{key}", item) for key, item in value.items())
            elif name not in _VALUES:
                yield f"{path}/{name}", value
    elif isinstance(part, list):
        yield from ((f"{path}/{index}", value) for index, value in enumerate(part))


def _is_narrow(part: dict[str, Any]) -> bool:
    low, high = part.get("exclusiveMinimum"), part.get("exclusiveMaximum")
    lowest, highest = _number(part, "minimum", low), _number(part, "maximum", high)
    if lowest is None or highest is None or part.get("type") == "integer":
        return False
    whole = any(
        isinstance(bound, (int, float)) and math.isfinite(bound) and bound == int(bound) for bound in (low, high)
    )
    return whole and highest - lowest < 1


def _number(part: dict[str, Any], name: str, exclusive: object) -> float | None:
    bounds = (part.get(name), exclusive)
    numbers = [value for value in bounds if isinstance(value, (int, float)) and not isinstance(value, bool)]
    return (max if name == "minimum" else min)(numbers, default=None)
