"""Values of a schema's keywords that llguidance 1.9 cannot take, which are removed alone: see `json_schema.py`."""

from typing import Any, Final

#: exclusive bound -> inclusive bound
INCLUSIVE: Final = {"exclusiveMinimum": "minimum", "exclusiveMaximum": "maximum"}
_BOUNDS: Final = (*INCLUSIVE, *INCLUSIVE.values())
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


def is_narrow(schema: dict[str, Any]) -> bool:
    """Whether an exclusive whole bound is within 1 of the other bound. The library then allows the bound itself."""
    if schema.get("type") == "integer" or not any(bound == int(bound) for bound in _numbers(schema, *INCLUSIVE)):
        return False
    lows, highs = _numbers(schema, "minimum", "exclusiveMinimum"), _numbers(schema, "maximum", "exclusiveMaximum")
    return bool(lows and highs) and min(highs) - max(lows) < 1


def _numbers(schema: dict[str, Any], *names: str) -> list[float]:
    values = (schema.get(name) for name in names)
    return [value for value in values if isinstance(value, (int, float)) and not isinstance(value, bool)]


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
    for exclusive, bound in INCLUSIVE.items():
        if isinstance(changed.get(exclusive), bool) and changed.pop(exclusive) and bound in changed:
            changed[exclusive] = changed.pop(bound)
    return changed
