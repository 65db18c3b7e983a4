"""Patterns of `patternProperties` that allow only names which the schema has, written as `properties`.

llguidance 1.9 takes an object's own names out of its patterns. Where nothing remains of a pattern, it still lets an
answer go on to a further property, whose name cannot be written. Runs where the library is: in a trial first.
"""

import re
from collections.abc import Callable
from typing import Any, Final

from pydantic_core import SchemaError, SchemaValidator, ValidationError, core_schema

from service.constraints.references import SharedParts, mapped, names_of, objects_of

#: parts of a pattern that are no alternatives of the whole: escapes, classes; and brackets
_PART: Final = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|.", re.DOTALL)
#: the most patterns and names that are compared, and the most characters of a pattern with its names
_MAX_COMPARED, _MAX_LENGTH = 10_000, 1_000

#: whether an expression matches no other texts than the names
IsEmpty = Callable[[str, list[str]], bool]


def with_names_of_finite_patterns(schema: Any, is_empty: IsEmpty) -> Any:
    """The schema with `properties` for each pattern that allows only names which stand anywhere in the schema."""
    if isinstance(schema, dict) and any("patternProperties" in part for part in objects_of(schema)):
        rewriter = _Rewriter(schema, is_empty)
        return rewriter.shared.added_to(mapped(schema, rewriter.named))
    return schema


class _Rewriter:
    def __init__(self, root: Any, is_empty: IsEmpty) -> None:
        self._names = list(dict.fromkeys(name for part in objects_of(root) for name in names_of(part)))
        self._is_empty, self._compared = is_empty, 0
        self.shared = SharedParts(root)

    def named(self, schema: dict[str, Any]) -> dict[str, Any]:
        patterns, properties = schema.get("patternProperties"), schema.get("properties", {})
        if isinstance(patterns, dict) and isinstance(properties, dict):
            for pattern in list(patterns):
                if names := self._only_names(pattern):
                    value = patterns.pop(pattern)
                    value = self.shared.add(value) if len(names) > 1 else value
                    both = {name: {"allOf": [properties[name], value]} for name in names if name in properties}
                    schema["properties"] = properties = {**properties, **dict.fromkeys(names, value), **both}
            if not patterns:
                del schema["patternProperties"]
        return schema

    def _only_names(self, pattern: str) -> list[str]:
        """The names that a pattern allows, if it allows no others. Empty if it does."""
        self._compared += 1 + len(self._names)
        if (whole := _whole(pattern)) is None or self._compared > _MAX_COMPARED:
            return []
        matched = [name for name in self._names if _matches(pattern, name)]
        is_short = len(whole) + sum(map(len, matched)) <= _MAX_LENGTH
        return matched if matched and is_short and self._is_empty(whole, matched) else []


def _whole(pattern: str) -> str | None:
    """A pattern that matches whole texts as an expression without anchors. None for any other pattern."""
    alternatives, depth = [""], 0
    for part in _PART.findall(pattern):
        depth += {"(": 1, ")": -1}.get(part, 0)
        if part == "|" and depth == 0:
            alternatives.append("")
        else:
            alternatives[-1] += part
    if not all(part.startswith("^") and part.endswith("$") and not part.endswith("\\$") for part in alternatives):
        return None
    return "|".join(f"(?:{part[1:-1]})" for part in alternatives)


def _matches(pattern: str, name: str) -> bool:
    """Whether a pattern matches in a name, by the same kind of library as the grammar's: in linear time."""
    try:
        SchemaValidator(core_schema.str_schema(pattern=pattern)).validate_python(name)
    except (ValidationError, SchemaError):
        return False
    return True
