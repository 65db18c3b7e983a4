"""Schemas that llguidance 1.9 takes but does not keep to, and those that it refuses although they ask for nothing.

The first are refused, so that every answer fits its schema. The second are simplified: programs write them often.

Found by comparing what its grammars allow with what the schemas say (`tests/constraints/test_unsound.py`):

- A number above a whole number and below the next one: `exclusiveMinimum: 0, maximum: 0.5` allows 0. Likewise below.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

#: keyword -> values that every instance fits
_EMPTY: Mapping[str, tuple[Any, ...]] = {"uniqueItems": (False,), "propertyNames": (True, {}, {"type": "string"})}
#: keywords whose values are no schemas, and those whose values are schemas by name
_VALUES, _NAMED = {"enum", "const", "default", "examples"}, {"properties", "patternProperties", "$defs", "definitions"}


def simplified(schema: Any) -> Any:
    """The schema without keywords that every instance fits."""
    if isinstance(schema, list):
        return [simplified(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    return {name: _simplified(name, value) for name, value in schema.items() if value not in _EMPTY.get(name, ())}


def _simplified(keyword: str, value: Any) -> Any:
    if keyword in _NAMED and isinstance(value, dict):
        return {name: simplified(one) for name, one in value.items()}
    return value if keyword in _VALUES else simplified(value)


def unsound_part(schema: object) -> str | None:
    """The first part of a schema that would not be kept to, and why; None if there is none."""
    level: list[tuple[str, object]] = [("", schema)]
    while level:
        for path, part in level:
            if isinstance(part, dict) and _is_narrow(part):
                return f"at {path or '/'}: an exclusive whole bound within 1 of the other bound is not supported"
        level = [one for path, part in level for one in _parts(path, part)]
    return None


def _parts(path: str, part: object) -> Iterator[tuple[str, object]]:
    if isinstance(part, dict):
        yield from ((f"{path}/{name}", value) for name, value in part.items() if name not in {"enum", "const"})
    elif isinstance(part, list):
        yield from ((f"{path}/{number}", value) for number, value in enumerate(part))


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
    both = (part.get(name), exclusive)
    given = [value for value in both if isinstance(value, (int, float)) and not isinstance(value, bool)]
    return (max if name == "minimum" else min)(given, default=None)
