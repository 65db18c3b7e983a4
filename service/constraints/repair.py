"""Repairs a wrong schema, so that a part that cannot be compiled takes nothing else with it.

Runs where the library is, which judges the parts: in a trial first. Ingresses have removed unsupported keywords
(`json_schema.py`).
"""

from collections.abc import Callable, Iterator
from typing import Any, Final

from service.constraints.references import SCHEMAS_BY_NAME, mapped

#: the most schemas that are compiled to find the wrong parts
_TRIES: Final = 200
#: keywords of alternatives, of which a wrong one is left out
_ALTERNATIVES: Final = ("anyOf", "oneOf")
_OTHER_PROPERTIES: Final = ("additionalProperties", "maxProperties")
#: keywords with schemas that are removed only if no other keyword is wrong
_STRUCTURE: Final = frozenset({
    *SCHEMAS_BY_NAME, *_ALTERNATIVES, "additionalProperties", "allOf", "items", "prefixItems", "type",
})  # fmt: skip


def repaired(schema: dict[str, Any], is_wrong: Callable[[Any], bool]) -> tuple[Any, list[str]]:
    """The schema without its wrong parts, and the names of the keywords that were removed.

    `is_wrong`: whether the library refuses a schema. The result may still be wrong, where parts do not fit each other.
    """
    repair = _Repair(is_wrong)
    definitions = {name: repair.within(name, schema[name]) for name in ("$defs", "definitions") if name in schema}
    return repair.part({**schema, **definitions}, ""), list(dict.fromkeys(repair.removed))


class _Repair:
    def __init__(self, is_wrong: Callable[[Any], bool]) -> None:
        self._refuses, self._tries = is_wrong, _TRIES
        self.removed: list[str] = []

    def _is_wrong(self, schema: Any) -> bool:
        """Whether a part is wrong by itself, wherever its references lead."""
        if not isinstance(schema, dict):
            return schema is not True
        self._tries -= 1
        return self._tries >= 0 and self._refuses(mapped(schema, lambda part: _without(part, "$ref")))

    def part(self, schema: Any, keyword: str) -> Any:
        """A schema that the library takes. `keyword`: the keyword that it stands in."""
        if not isinstance(schema, (bool, dict)):
            self.removed.append(keyword)
            return {}
        if isinstance(schema, bool) or not self._is_wrong(schema):
            return schema
        schema = {keyword: self.within(keyword, value) for keyword, value in schema.items()}
        if not self._is_wrong(schema):
            return schema
        for removed, smaller in _smaller(schema):
            if not self._is_wrong(smaller):
                self.removed.append(removed)
                return smaller
        self.removed += schema
        return {}

    def within(self, keyword: str, value: Any) -> Any:
        """The value of a keyword with repaired schemas."""
        if isinstance(value, dict) and keyword in SCHEMAS_BY_NAME:
            return {name: self.part(part, keyword) for name, part in value.items()}
        if isinstance(value, dict) and keyword in _STRUCTURE:
            return self.part(value, keyword)
        if not isinstance(value, list) or keyword not in _STRUCTURE - {"type"}:
            return value
        usable = [part for part in value if not self._is_wrong(part)] if keyword in _ALTERNATIVES else value
        if 0 < len(usable) < len(value):
            self.removed.append(keyword)
            return usable
        return [self.part(part, keyword) for part in value]


def _smaller(schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The schema without one item of a keyword's list, and without one keyword, with the keyword."""
    keywords = sorted(schema, key=lambda keyword: keyword in _STRUCTURE)
    for keyword in keywords:
        value = schema[keyword]
        if isinstance(value, list) and len(value) > 1:
            for index in range(len(value)):
                yield keyword, {**schema, keyword: [*value[:index], *value[index + 1 :]]}
        further = _OTHER_PROPERTIES if keyword == "properties" else ()  # they depend on the named ones
        yield keyword, _without(schema, keyword, *further)


def _without(schema: dict[str, Any], *keywords: str) -> dict[str, Any]:
    return {name: value for name, value in schema.items() if name not in keywords}
