"""JSON schemas as llguidance 1.9 can keep to them. Does not load the library, so that an ingress can call it.

`supported_schema` makes three kinds of changes:

- Keywords that the library refuses or does not obey are removed. `ignored` has their paths, unless they have no effect,
  are annotations (a `format` that the library does not know), or other keywords replace them exactly.
- Values of keywords that llguidance 1.9 cannot take are removed, though the rest of the schema is fine: bounds far from
  0, steps of many digits, lengths that are no lengths, and null, which clients write for fields that they have not set.
- Objects with `properties` but without `additionalProperties` get no other properties. The library writes such
  properties with made-up names, and may write a name twice. Every answer still fits the original schema.

`oneOf` stays and is obeyed as `anyOf`. The tables agree with the library: `tests/constraints` compares them.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from service.constraints.closing import ClosedObjects
from service.constraints.references import SCHEMAS_BY_NAME, VALUES, References, items_of, mapped

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
#: the most characters of the copies of a schema for all names of a list
_MAX_COPIES: Final = 64 * 1024

#: parts of a pattern: an escape, a class, a group's beginning
_PATTERN_PART: Final = re.compile(r"\\(?:.|\n)|\[(?:\\.|[^\]\\])*\]|\(\?(?:<[=!]|.)", re.DOTALL)
_LOOK_AROUND: Final = frozenset({"(?=", "(?!", "(?<=", "(?<!", "(?>"})
#: the letters of back-references and of boundaries, after a backslash
_NO_ESCAPES: Final = frozenset("123456789kbB")

#: exclusive bound -> inclusive bound
_INCLUSIVE: Final = {"exclusiveMinimum": "minimum", "exclusiveMaximum": "maximum"}
_BOUNDS: Final = (*_INCLUSIVE, *_INCLUSIVE.values())
_LENGTHS: Final = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
#: keywords with an effect, whose removal is told
_WITH_EFFECT: Final = frozenset({
    *_BOUNDS, *_LENGTHS, "$ref", "additionalItems", "additionalProperties", "allOf", "anyOf", "enum", "items",
    "multipleOf", "oneOf", "pattern", "patternProperties", "prefixItems", "properties", "required", "type",
})  # fmt: skip
#: keywords whose value may be null
_NULLABLE: Final = frozenset({"const", "default", "example", "examples"})
#: bounds that the library can compile: up to JSON's largest safe integer, and not too near to 0
_LARGEST_BOUND, _SMALLEST_BOUND = 2**53, 1e-50
_LONGEST_TEXT, _MOST_PARTS = 1_000_000, 2**53
#: the most steps between two whole numbers' beginnings: the library makes a state for each
_MOST_STEPS, _MOST_DECIMALS = 150_000, 9


class SupportedSchema(NamedTuple):
    """A schema that the library can keep to. `ignored`: the paths of removed keywords, such as `items.uniqueItems`."""

    schema: Any
    ignored: tuple[str, ...]


def supported_schema(schema: Any) -> SupportedSchema:
    """The nearest schema that the library can keep to. Wrong schemas stay wrong; the library says why."""
    adapter = _Adapter(schema)
    adapted = adapter.adapted(schema, "")
    if isinstance(adapted, bool):  # the library takes objects only
        adapted = {} if adapted else {"enum": []}
    return SupportedSchema(adapted, tuple(dict.fromkeys(adapter.ignored)))


def without_patterns(schema: Any) -> Any:
    """The schema without its patterns."""
    patterns = ("pattern", "patternProperties")
    return mapped(schema, lambda part: {name: value for name, value in part.items() if name not in patterns})


class _Adapter:
    def __init__(self, root: Any) -> None:
        self._references = References(root)
        self._objects = ClosedObjects(root, self._references)
        self.ignored: list[str] = []

    def adapted(self, schema: Any, path: str) -> Any:
        """The changed copy of a part of the schema. `path`: its path, empty or with a dot at the end."""
        if not isinstance(schema, dict):
            return schema
        schema, unusable = with_usable_values(original := schema)
        self.ignored += [f"{path}{name}" for name in unusable]
        if schema.get("not") == {} or schema.get("not") is True:
            return False
        changed = {name: value for name, value in schema.items() if name not in UNSUPPORTED}
        replaced = self._named_properties(schema, changed)
        if isinstance(name := changed.get("format"), str) and name not in FORMATS:
            del changed["format"]
        for check in (self._pattern, self._patterns, self._reference, self._bounds):
            check(changed, path)
        changed = {name: self._within(name, value, f"{path}{name}.") for name, value in changed.items()}
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
            return {name: self.adapted(item, f"{path}{name}.") for name, item in value.items()}
        if isinstance(value, list):
            return [self.adapted(item, f"{path}{index}.") for index, item in enumerate(value)]
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
        if isinstance(pattern := schema.get("pattern"), str) and not _is_supported(pattern):
            del schema["pattern"]
            self.ignored.append(f"{path}pattern")

    def _patterns(self, schema: Schema, path: str) -> None:
        """Removes patterns of properties if one of them is not supported. Their properties are then any."""
        patterns = schema.get("patternProperties")
        if isinstance(patterns, dict) and not all(map(_is_supported, patterns)):
            del schema["patternProperties"]
            if schema.get("additionalProperties") is False:
                schema["additionalProperties"] = {"anyOf": list(patterns.values())}
            self.ignored.append(f"{path}patternProperties")

    def _reference(self, schema: Schema, path: str) -> None:
        reference = schema.get("$ref")
        if isinstance(reference, str) and self._references.is_missing(reference):
            del schema["$ref"]
            self.ignored.append(f"{path}$ref")

    def _bounds(self, schema: Schema, path: str) -> None:
        """Makes exclusive bounds inclusive where the library would: a whole bound, and the other one nearer than 1."""
        if _is_narrow(schema):
            for name, inclusive in _INCLUSIVE.items():
                if (bound := schema.pop(name, None)) is not None:
                    schema[inclusive] = bound
                    self.ignored.append(f"{path}{name}")

    # --- objects ---------------------------------------------------------------------------------------

    def _named_properties(self, original: Schema, schema: Schema) -> set[str]:
        """Writes `propertyNames` as `properties` or `patternProperties` if that is exact. Returns replaced keywords."""
        names = self._references.resolved(original.get("propertyNames"))
        properties, other_values = schema.get("properties", {}), schema.get("additionalProperties", True)
        if not isinstance(names, dict) or not isinstance(properties, dict) or "patternProperties" in schema:
            return set()
        is_pattern = set(names) - _ANNOTATIONS <= {"pattern", "type"} and _is_supported(names.get("pattern"))
        texts = [names["const"]] if "const" in names else items_of(names.get("enum"))
        if texts and set(names) <= _CONSTANT_NAMES and all(isinstance(text, str) for text in texts):
            if len(texts) * len(json.dumps(other_values)) > _MAX_COPIES:
                return set()
            schema["properties"] = {name: value if name in texts else False for name, value in properties.items()}
            schema["properties"] |= {name: other_values for name in texts if name not in properties}
        elif is_pattern and not properties and not items_of(schema.get("required")):
            schema["patternProperties"] = {names["pattern"]: other_values}
        else:
            return set()
        schema["additionalProperties"] = False
        return {"propertyNames"}

    def _close(self, original: Schema, schema: Schema) -> None:
        """Excludes properties that the schema does not name, unless it allows them or another schema adds some."""
        names, least = self._objects.property_names(original), schema.get("minProperties")
        if names is None or "additionalProperties" in schema or (isinstance(least, int) and least > len(names)):
            return
        properties = schema.get("properties", {})
        if isinstance(properties, dict):
            missing = {name: True for name in names if name not in properties}
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
        optional = [name for name, value in properties.items() if name not in required and value is not False]
        if closed and bounds.get("maxProperties", -1) >= len(properties):
            bounds.pop("maxProperties")
            del schema["maxProperties"]
        least = max(0, bounds.get("minProperties", 0) - len(required))
        most = bounds["maxProperties"] - len(required) if "maxProperties" in bounds else None
        if optional and (least or most is not None) and not (closed and least <= 1 and most in (None, 1)):
            for name in bounds:
                del schema[name]
                self.ignored.append(f"{path}{name}")


def _is_supported(pattern: object) -> bool:
    """Whether a pattern has no look-around, boundary or back-reference. The library refuses other wrong patterns."""
    if not isinstance(pattern, str):
        return False
    parts = _PATTERN_PART.findall(pattern)
    return not any(part in _LOOK_AROUND or (part[0] == "\\" and part[1] in _NO_ESCAPES) for part in parts)


def _is_narrow(schema: Schema) -> bool:
    """Whether an exclusive whole bound is within 1 of the other bound. The library then allows the bound itself."""
    if schema.get("type") == "integer" or not any(bound == int(bound) for bound in _numbers(schema, *_INCLUSIVE)):
        return False
    lows, highs = _numbers(schema, "minimum", "exclusiveMinimum"), _numbers(schema, "maximum", "exclusiveMaximum")
    return bool(lows and highs) and min(highs) - max(lows) < 1


def _numbers(schema: Schema, *names: str) -> list[float]:
    values = (schema.get(name) for name in names)
    return [value for value in values if isinstance(value, (int, float)) and not isinstance(value, bool)]


# --- values of keywords ----------------------------------------------------------------------------


def with_usable_values(schema: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """A copy of one schema, without what is within it, whose values can be used; and the names of removed keywords."""
    usable, removed = dict[str, Any](), list[str]()
    for name, value in _with_exclusive_bounds(schema).items():
        if value is None and name not in _NULLABLE:
            removed += [name] if name in _WITH_EFFECT else []
        elif isinstance(value, (int, float)) and not isinstance(value, bool) and not _is_usable(name, value):
            removed.append(name)
        else:
            usable[name] = int(value) if name in _LENGTHS and isinstance(value, float) else value
    return usable, removed


def _is_usable(name: str, value: float) -> bool:
    if name in _BOUNDS:
        return value == 0 or _SMALLEST_BOUND <= abs(value) <= _LARGEST_BOUND
    if name in _LENGTHS:
        return 0 <= value <= (_LONGEST_TEXT if name.endswith("Length") else _MOST_PARTS) and value == int(value)
    return name != "multipleOf" or _is_usable_step(value)


def _is_usable_step(step: float) -> bool:
    """Whether a `multipleOf` is positive and has few digits, by the library's own arithmetic."""
    if not 0 < step <= _MOST_STEPS:
        return False
    for _ in range(_MOST_DECIMALS):
        if step == int(step):
            break
        step *= 10
    return step == int(step) and step <= _MOST_STEPS


def _with_exclusive_bounds(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema without draft 4's `exclusiveMinimum: true`, which makes `minimum` an exclusive bound."""
    changed = dict(schema)
    for exclusive, bound in _INCLUSIVE.items():
        if isinstance(changed.get(exclusive), bool) and changed.pop(exclusive) and bound in changed:
            changed[exclusive] = changed.pop(bound)
    return changed
