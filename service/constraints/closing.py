"""The objects of a schema that get no other properties than the named ones, as xgrammar does by default.

A schema is *composed* if it has keywords of objects beside schemas for the same value (`allOf`, `anyOf`, `oneOf`,
`$ref`). It then names the properties of all these schemas together. Those schemas themselves stay open: alone, they
would exclude the properties of the others.
"""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from service.constraints.references import References, items_of, names_of, objects_of, properties_of
from service.constraints.room import Room

_LISTS = ("allOf", "anyOf", "oneOf")
_OBJECTS = frozenset({
    "additionalProperties", "maxProperties", "minProperties", "patternProperties", "properties", "propertyNames",
    "required", "unevaluatedProperties",
})  # fmt: skip


class ClosedObjects:
    """Which objects of a schema to close. `root`: the whole schema. Without room for visits, nothing is closed."""

    def __init__(self, root: Any, references: References, room: Room) -> None:
        self._references, self._room = references, room
        self._extended: set[int] = set()
        for schema in objects_of(root):
            if self._is_composed(schema):
                self._extend(self._parts(schema), [schema])

    def property_names(self, schema: dict[str, Any]) -> dict[str, None] | None:
        """The names of all properties of an object, in order. None if other names are possible.

        `schema`: a part of the root, not a copy.
        """
        composed = self._is_composed(schema)
        named = isinstance(schema.get("properties"), dict)
        if not self._room.has_visits or id(schema) in self._extended or not (composed or named):
            return None
        if not composed:
            return dict.fromkeys(names_of(schema))
        names: dict[str, None] = {}
        for number, part in enumerate(self._same_value(schema)):
            if "patternProperties" in part or (number and "additionalProperties" in part):
                return None
            names |= dict.fromkeys(names_of(part))
        return names if names and self._room.has_visits else None

    def has_alternatives(self, schema: dict[str, Any]) -> bool:
        """Whether a schema for the same value is a union. Its members may name different properties."""
        return any("anyOf" in part or "oneOf" in part for part in self._same_value(schema))

    def _is_composed(self, schema: dict[str, Any]) -> bool:
        parts = [name for name in (*_LISTS, "$ref") if name in schema]
        several = len(parts) > 1 or (isinstance(schema.get("allOf"), list) and len(schema["allOf"]) > 1)
        return bool(parts) and (several or not _OBJECTS.isdisjoint(schema))

    def _extend(self, schemas: list[Any], roots: list[Any]) -> None:
        """Marks schemas for the same value, and schemas for the same property. `roots`: further ones, not marked."""
        by_name: defaultdict[str, list[Any]] = defaultdict(list)
        marked = set[int]()
        for part in self._same_value(*roots, *schemas):
            if not any(part is root for root in roots) and id(part) not in self._extended:
                marked.add(id(part))
            for name, value in properties_of(part).items():
                by_name[name].append(value)
        self._extended |= marked
        if marked:
            for values in by_name.values():
                if len(values) > 1:
                    self._extend(values, [])

    def _same_value(self, *schemas: Any) -> Iterator[dict[str, Any]]:
        """The schemas and all other schemas for the same value, in order."""
        parts, visited = [part for part in reversed(schemas) if isinstance(part, dict)], set[int]()
        while parts and self._room.has_visits:
            part = parts.pop()
            self._room.visit(1)
            if id(part) not in visited:
                visited.add(id(part))
                self._room.visit(len(properties_of(part)) + len(items_of(part.get("required"))))
                yield part
                parts += reversed(self._parts(part))

    def _parts(self, schema: dict[str, Any]) -> list[dict[str, Any]]:
        parts = [part for name in _LISTS for part in items_of(schema.get(name))]
        if isinstance(reference := schema.get("$ref"), str):
            with suppress(KeyError):
                parts.append(self._references.target(reference))
        return [part for part in parts if isinstance(part, dict)]
