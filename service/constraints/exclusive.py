"""Whether the parts of a `oneOf` exclude each other, so that it equals an `anyOf`.

Two schemas exclude each other if no value fits both: their types differ, their constants differ, or a property that
one of them requires excludes the property of the other.
"""

from __future__ import annotations

from typing import Any, Final

from service.constraints.references import References, items_of

_TYPES: Final = frozenset({"null", "boolean", "number", "string", "array", "object"})
#: the most schemas, constants and names that are compared, for a whole schema; the most schemas within each other
_MAX_COMPARED, _MAX_DEPTH = 20_000, 8


class Exclusion:
    """Compares the parts of the unions of one schema, up to a limit."""

    def __init__(self, references: References) -> None:
        self._references = references
        self._compared = 0

    def holds(self, parts: list[Any], originals: list[Any]) -> bool:
        """Whether a value that fits one of `parts` fits none of the other `originals`. False if this is not certain.

        `parts`: narrower copies of `originals`.
        """
        indices = range(len(parts))
        return all(self._exclude(parts[i], originals[j], 0) for i in indices for j in indices if i != j)

    def _exclude(self, first: Any, second: Any, depth: int) -> bool:
        first, second = self._references.resolved(first), self._references.resolved(second)
        self._compared += _size(first) + _size(second)
        if self._compared > _MAX_COMPARED or depth > _MAX_DEPTH:
            return False
        if first is False or second is False:
            return True
        if not isinstance(first, dict) or not isinstance(second, dict):
            return False
        return (
            _types(first).isdisjoint(_types(second))
            or _constants_differ(first, second)
            or self._parts_exclude(first, second, depth + 1)
            or self._parts_exclude(second, first, depth + 1)
            or self._properties_exclude(first, second, depth + 1)
        )

    def _parts_exclude(self, first: dict[str, Any], second: Any, depth: int) -> bool:
        """Whether the schemas within `first` for the same value exclude `second`."""
        every = [*items_of(first.get("allOf")), *([{"$ref": first["$ref"]}] if "$ref" in first else [])]
        if any(self._exclude(part, second, depth) for part in every):
            return True
        unions = [first[name] for name in ("anyOf", "oneOf") if isinstance(first.get(name), list)]
        return any(all(self._exclude(part, second, depth) for part in parts) for parts in unions)

    def _properties_exclude(self, first: dict[str, Any], second: dict[str, Any], depth: int) -> bool:
        """Whether both are objects, and a property that one of them requires cannot fit both."""
        if _types(first) | _types(second) != {"object"}:
            return False
        required = dict.fromkeys(
            name for schema in (first, second) for name in items_of(schema.get("required")) if isinstance(name, str)
        )
        return any(self._exclude(_property(first, name), _property(second, name), depth) for name in required)


def _types(schema: dict[str, Any]) -> frozenset[str]:
    """The types of the values that fit a schema, at most."""
    types = schema.get("type")
    names = [types] if isinstance(types, str) else types if isinstance(types, list) else _TYPES
    allowed = frozenset("number" if name == "integer" else name for name in names if isinstance(name, str))
    if (constants := _constants(schema)) is not None:
        allowed &= {_type(value) for value in constants}
    return allowed


def _type(value: object) -> str:
    if isinstance(value, bool) or value is None:
        return "null" if value is None else "boolean"
    if isinstance(value, (int, float)):
        return "number"
    return "string" if isinstance(value, str) else "array" if isinstance(value, list) else "object"


def _constants(schema: dict[str, Any]) -> list[Any] | None:
    if "const" in schema:
        return [schema["const"]]
    return schema["enum"] if isinstance(schema.get("enum"), list) else None


def _constants_differ(first: dict[str, Any], second: dict[str, Any]) -> bool:
    values, other_values = _constants(first), _constants(second)
    if (
        values is None
        or other_values is None
        or any(isinstance(value, (list, dict)) for value in (*values, *other_values))
    ):
        return False
    return set(values).isdisjoint(other_values)


def _property(schema: dict[str, Any], name: str) -> Any:
    """The schema of a property."""
    properties = schema.get("properties")
    if isinstance(properties, dict) and name in properties:
        return properties[name]
    return True if "patternProperties" in schema else schema.get("additionalProperties", True)


def _size(schema: Any) -> int:
    """The number of constants and required names of a schema, and one."""
    return 1 + sum(len(items_of(schema.get(name))) for name in ("enum", "required")) if isinstance(schema, dict) else 1
