"""The parts of a schema, and references between them (`$ref`).

Knows paths such as `#/$defs/name`; leaves anchors and ids to the library.
"""

import json
from collections.abc import Callable, Iterator
from functools import cached_property
from itertools import count
from typing import Any, Final
from urllib.parse import unquote

#: keywords whose values are not schemas; keywords whose values are schemas by name
VALUES: Final = frozenset({"enum", "const", "default", "examples"})
SCHEMAS_BY_NAME: Final = frozenset({"properties", "patternProperties", "$defs", "definitions"})
#: the longest chain of references, and index in a path
_MAX_CHAIN, _MAX_DIGITS = 20, 10


class References:
    """The references of a schema."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._targets: dict[str, Any] = {}

    def target(self, reference: str) -> Any:
        """The part of the schema at a path such as `#/$defs/name`. KeyError if there is none."""
        if reference not in self._targets:
            try:
                self._targets[reference] = self._part(reference)
            except KeyError as error:
                self._targets[reference] = error
        if isinstance(target := self._targets[reference], KeyError):
            raise KeyError(reference)
        return target

    def _part(self, reference: str) -> Any:
        start, *names = reference.rstrip("/").split("/")
        if start != "#":
            raise KeyError(reference)
        part = self._root
        for name in names:
            key = unquote(name).replace("~1", "/").replace("~0", "~")
            if isinstance(part, list) and key.isdecimal() and len(key) < _MAX_DIGITS and int(key) < len(part):
                part = part[int(key)]
            elif isinstance(part, dict):
                part = part[key]
            else:
                raise KeyError(reference)
        return part

    def is_missing(self, reference: str) -> bool:
        """Whether a reference leads to nothing within the schema. Nothing is fetched."""
        try:
            self.target(reference)
        except KeyError:
            return not self._has_ids
        return False

    def resolved(self, schema: Any) -> Any:
        """The schema that a reference without siblings leads to; any other schema itself."""
        for _ in range(_MAX_CHAIN):
            if not isinstance(schema, dict) or set(schema) != {"$ref"} or not isinstance(schema["$ref"], str):
                return schema
            try:
                schema = self.target(schema["$ref"])
            except KeyError:
                return schema
        return schema

    @cached_property
    def has_inner_ids(self) -> bool:
        """Whether a part has an id of its own, from which the paths of references within it start."""
        ids = (part.get(name) for part in objects_of(self._root) if part is not self._root for name in ("$id", "id"))
        return any(isinstance(value, str) for value in ids)

    @cached_property
    def _has_ids(self) -> bool:
        """Whether a part of the schema has a name of its own, which references may use."""
        text = json.dumps(self._root)
        return any(f'"{name}": "' in text for name in ("$id", "id", "$anchor", "$dynamicAnchor"))


class SharedParts:
    """Parts of a schema that stand once for several names, in the `$defs` of its root."""

    def __init__(self, root: Any) -> None:
        definitions = root.get("$defs") if isinstance(root, dict) else None
        self._taken = frozenset(definitions if isinstance(definitions, dict) else ())
        self._parts: dict[str, Any] = {}

    def add(self, part: Any) -> Any:
        """A reference to a part. Other values stand for themselves."""
        if not isinstance(part, dict):
            return part
        names = (f"shared_{number}" for number in count(len(self._parts)))
        name = next(name for name in names if name not in self._taken and name not in self._parts)
        self._parts[name] = part
        return {"$ref": f"#/$defs/{name}"}

    def added_to(self, root: Any) -> Any:
        """The root with the parts."""
        if not self._parts or not isinstance(root, dict):
            return root
        definitions = root.get("$defs")
        return {**root, "$defs": {**(definitions if isinstance(definitions, dict) else {}), **self._parts}}


def mapped(schema: Any, change: Callable[[dict[str, Any]], Any]) -> Any:
    """A copy of a schema in which each object that is a schema is changed, the innermost first."""
    if isinstance(schema, list):
        return [mapped(part, change) for part in schema]
    if not isinstance(schema, dict):
        return schema
    parts = dict[str, Any]()
    for keyword, value in schema.items():
        if keyword in SCHEMAS_BY_NAME and isinstance(value, dict):
            parts[keyword] = {name: mapped(part, change) for name, part in value.items()}
        else:
            parts[keyword] = value if keyword in VALUES else mapped(value, change)
    return change(parts)


def objects_of(root: Any) -> Iterator[dict[str, Any]]:
    """All objects in a schema, most of which are schemas."""
    parts = [root]
    while parts:
        part = parts.pop()
        if isinstance(part, dict):
            yield part
            parts += part.values()
        elif isinstance(part, list):
            parts += part


def items_of(value: Any) -> list[Any]:
    """A list as it is. Empty for any other value."""
    return value if isinstance(value, list) else []


def properties_of(schema: dict[str, Any]) -> dict[str, Any]:
    """The `properties` of a schema. Empty if it has none."""
    properties = schema.get("properties")
    return properties if isinstance(properties, dict) else {}


def names_of(schema: dict[str, Any]) -> list[str]:
    """The names of properties that a schema describes or requires."""
    required = (name for name in items_of(schema.get("required")) if isinstance(name, str))
    return [*properties_of(schema), *required]
