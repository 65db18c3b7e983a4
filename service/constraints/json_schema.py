"""JSON schemas as llguidance 1.9 can keep to them. Does not load the library, so that an ingress can call it.

`supported_schema` makes three kinds of changes:

- Keywords that the library refuses or does not obey are removed. `ignored` has their paths, unless they have no effect,
  are annotations (a `format` that the library does not know), or other keywords replace them exactly.
- Patterns, which are ECMA-262's, are written as Rust's (`ecma_patterns.py`). Values of keywords that llguidance 1.9
  cannot take are removed, though the rest of the schema is fine: patterns with look-around, bounds far from 0, steps of
  many digits, lengths that are no lengths, and null, which clients write for fields that they have not set.
- Objects with `properties` but without `additionalProperties` get no other properties. The library writes such
  properties with made-up names, and may write a name twice. Every answer still fits the original schema.

A result is little longer than its schema: a part for several names stands once, in `$defs`, and `room.py` bounds the
names. `oneOf` stays and is obeyed as `anyOf`. The tables agree with the library: `tests/constraints` compares them.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from service.constraints.closing import ClosedObjects
from service.constraints.ecma_patterns import rust_pattern
from service.constraints.keyword_values import INCLUSIVE, is_narrow, with_usable_values
from service.constraints.references import SCHEMAS_BY_NAME, VALUES, References, SharedParts, items_of
from service.constraints.room import Room

Schema = dict[str, Any]

#: keywords of JSON Schema that the library refuses
UNSUPPORTED: Final = frozenset({
    "$dynamicAnchor", "$dynamicRef", "$recursiveAnchor", "$recursiveRef", "contains", "dependencies",
    "dependentRequired", "dependentSchemas", "else", "if", "maxContains", "minContains", "not", "propertyNames", "then",
    "unevaluatedItems", "unevaluatedProperties", "uniqueItems",
})  # fmt: skip
#: formats that the library knows
FORMATS: Final = frozenset({
    "date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "unknown", "uri", "uuid",
})  # fmt: skip
#: unsupported keyword -> its values without effect
_NO_EFFECT: Final[Mapping[str, tuple[Any, ...]]] = {
    "uniqueItems": (False,),
    "propertyNames": (True, {}, {"type": "string"}),
    "not": (False,),
    "dependencies": ({},),
    "dependentRequired": ({},),
    "dependentSchemas": ({},),
    "unevaluatedItems": (True, {}),
    "unevaluatedProperties": (True, {}),
}
#: unsupported keyword -> the keywords without any of which it has no effect
_NEEDS: Final[Mapping[str, tuple[str, ...]]] = {"if": ("then", "else"), "$dynamicAnchor": (), "$recursiveAnchor": ()}
#: unsupported keywords that are part of another one, whose path stands for both
_SECONDARY: Final = frozenset({"then", "else", "minContains", "maxContains"})

#: keywords of names that have no effect, and that names from a list may have
_ANNOTATIONS: Final = frozenset({"$schema", "description", "title"})
_CONSTANT_NAMES: Final = _ANNOTATIONS | {"const", "enum", "type"}
#: the longest path that is written out, and the most characters of a name in it
_LONGEST_PATH, _LONGEST_NAME = 400, 100


class SupportedSchema(NamedTuple):
    """A schema that the library can keep to. `ignored`: the paths of removed keywords, such as `items.uniqueItems`."""

    schema: Any
    ignored: tuple[str, ...]


def supported_schema(schema: Any, room: Room | None = None) -> SupportedSchema:
    """The nearest schema that the library can keep to. Wrong schemas stay wrong; the library says why.

    `room`: the room of all schemas of a request, by default of this one alone. TimeoutError if they take too long.
    """
    adapter = _Adapter(schema, Room() if room is None else room)
    adapted = adapter.shared.added_to(adapter.adapted(schema, ""))
    if isinstance(adapted, bool):  # the library takes objects only
        adapted = {} if adapted else {"enum": []}
    return SupportedSchema(adapted, tuple(dict.fromkeys(adapter.ignored)))


class _Adapter:
    """Adapts one schema. `shared`: the parts that stand once for several names."""

    def __init__(self, root: Any, room: Room) -> None:
        self._references, self._room = References(root), room
        self._objects = ClosedObjects(root, self._references, room)
        self.shared = SharedParts(root)
        self.ignored: list[str] = []

    def adapted(self, schema: Any, path: str) -> Any:
        """The changed copy of a part of the schema. `path`: its path, empty or with a dot at the end."""
        if not isinstance(schema, dict):
            return schema
        self._room.check_time()
        schema, unusable = with_usable_values(original := schema)
        self.ignored += [f"{path}{name}" for name in unusable]
        if schema.get("not") == {} or schema.get("not") is True:
            return False
        changed = {name: value for name, value in schema.items() if name not in UNSUPPORTED}
        replaced, names = self._named_properties(schema, changed)
        if isinstance(name := changed.get("format"), str) and name not in FORMATS:
            del changed["format"]
        for check in (self._pattern, self._patterns, self._reference, self._bounds):
            check(changed, path)
        changed = {name: self._within(name, value, _below(path, name)) for name, value in changed.items()}
        if names:
            value = self.adapted(schema.get("additionalProperties", True), _below(path, "additionalProperties"))
            changed["properties"] |= dict.fromkeys(names, self.shared.add(value) if len(names) > 1 else value)
        self._close(original, changed)
        closed = changed.get("additionalProperties") is False
        if closed and "unevaluatedProperties" in schema and not self._objects.has_alternatives(original):
            replaced.add("unevaluatedProperties")
        self._count(changed, path)
        for name in schema:
            if name in UNSUPPORTED and name not in replaced:
                self._ignore(name, schema, path)
        return changed

    def _within(self, keyword: str, value: Any, path: str) -> Any:
        if keyword in VALUES:
            return value
        if keyword in SCHEMAS_BY_NAME and isinstance(value, dict):
            return {name: self.adapted(item, _below(path, name)) for name, item in value.items()}
        if isinstance(value, list):
            return [self.adapted(item, _below(path, str(index))) for index, item in enumerate(value)]
        return self.adapted(value, path)

    def _ignore(self, keyword: str, schema: Schema, path: str) -> None:
        """Notes that a keyword is ignored, if it has an effect that no other keyword notes."""
        setting = schema[keyword]  # false differs from 0
        no_effect = any(setting == value and type(setting) is type(value) for value in _NO_EFFECT.get(keyword, ()))
        needed = _NEEDS.get(keyword)
        if not no_effect and keyword not in _SECONDARY and (needed is None or any(name in schema for name in needed)):
            self.ignored.append(f"{path}{keyword}")

    # --- keywords of strings, numbers and references ---------------------------------------------------

    def _pattern(self, schema: Schema, path: str) -> None:
        if "pattern" in schema:
            schema["pattern"] = rust_pattern(schema["pattern"])
            if schema["pattern"] is None:
                del schema["pattern"]
                self.ignored.append(f"{path}pattern")

    def _patterns(self, schema: Schema, path: str) -> None:
        """Removes the patterns of properties that cannot be used. Their properties are then possible by any name."""
        if not isinstance(patterns := schema.get("patternProperties"), dict):
            return
        usable, values = dict[str, Any](), list[Any]()
        for pattern, value in patterns.items():
            if (name := rust_pattern(pattern)) is None:
                values.append(value)
            else:
                usable[name] = {"allOf": [usable[name], value]} if name in usable else value
        if values:
            self.ignored.append(f"{path}patternProperties")
            if schema.get("additionalProperties") is False:
                schema["additionalProperties"] = {"anyOf": values}
        if usable or not values:
            schema["patternProperties"] = usable
        else:
            del schema["patternProperties"]

    def _reference(self, schema: Schema, path: str) -> None:
        reference = schema.get("$ref")
        if isinstance(reference, str) and self._references.is_missing(reference):
            del schema["$ref"]
            self.ignored.append(f"{path}$ref")

    def _bounds(self, schema: Schema, path: str) -> None:
        """Makes exclusive bounds inclusive where the library would: a whole bound, and the other one nearer than 1."""
        if is_narrow(schema):
            for name, inclusive in INCLUSIVE.items():
                if (bound := schema.pop(name, None)) is not None:
                    schema[inclusive] = bound
                    self.ignored.append(f"{path}{name}")

    # --- objects ---------------------------------------------------------------------------------------

    def _named_properties(self, original: Schema, schema: Schema) -> tuple[set[str], list[str]]:
        """Writes `propertyNames` as `properties` or `patternProperties` if that is exact.

        Returns the replaced keywords, and the names of a list that get the schema of other properties.
        """
        names, properties = self._references.resolved(original.get("propertyNames")), schema.get("properties", {})
        if not isinstance(names, dict) or not isinstance(properties, dict) or "patternProperties" in schema:
            return set(), []
        is_pattern = set(names) - _ANNOTATIONS <= {"pattern", "type"} and rust_pattern(names.get("pattern")) is not None
        texts = [names["const"]] if "const" in names else items_of(names.get("enum"))
        further = list[str]()
        if texts and set(names) <= _CONSTANT_NAMES and not self._references.has_inner_ids:
            if not self._room.has_characters(texts):
                return set(), []
            listed = dict.fromkeys(texts)
            further = [name for name in listed if name not in properties]
            schema["properties"] = {name: value if name in listed else False for name, value in properties.items()}
        elif is_pattern and not properties and not items_of(schema.get("required")):
            schema["patternProperties"] = {names["pattern"]: schema.get("additionalProperties", True)}
        else:
            return set(), []
        schema["additionalProperties"] = False
        return {"propertyNames"}, further

    def _close(self, original: Schema, schema: Schema) -> None:
        """Excludes properties that the schema does not name, unless it allows them or another schema adds some."""
        names, least = self._objects.property_names(original), schema.get("minProperties")
        if names is None or "additionalProperties" in schema or (isinstance(least, int) and least > len(names)):
            return
        properties = schema.get("properties", {})
        if isinstance(properties, dict):
            missing = {name: True for name in names if name not in properties}
            if not self._room.has_characters(missing):
                return
            if missing or "properties" in schema:
                schema["properties"] = {**properties, **missing}
            schema["additionalProperties"] = False

    def _count(self, schema: Schema, path: str) -> None:
        """Removes bounds of the number of properties where some are optional, unless the library can keep to them."""
        bounds = {
            name: schema[name] for name in ("minProperties", "maxProperties") if isinstance(schema.get(name), int)
        }
        properties, required = schema.get("properties"), items_of(schema.get("required"))
        closed = schema.get("additionalProperties") is False and not schema.get("patternProperties")
        # the library counts a repeated name again
        if not closed and bounds.get("minProperties", 0) - len(required) > 1:
            bounds.pop("minProperties")
            del schema["minProperties"]
            self.ignored.append(f"{path}minProperties")
        if not bounds or not isinstance(properties, dict):
            return
        needed = {name for name in required if isinstance(name, str)}
        optional = [name for name, value in properties.items() if name not in needed and value is not False]
        if closed and bounds.get("maxProperties", -1) >= len(properties):
            bounds.pop("maxProperties")
            del schema["maxProperties"]
        least = max(0, bounds.get("minProperties", 0) - len(required))
        most = bounds["maxProperties"] - len(required) if "maxProperties" in bounds else None
        if optional and (least or most is not None) and not (closed and least <= 1 and most in (None, 1)):
            for name in bounds:
                del schema[name]
                self.ignored.append(f"{path}{name}")


def _below(path: str, name: str) -> str:
    """The path of what is within the part `name`. A path that is long already stays."""
    return path if len(path) > _LONGEST_PATH else f"{path}{name[:_LONGEST_NAME]}."
