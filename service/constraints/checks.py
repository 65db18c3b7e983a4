"""Checks of schemas and grammars before llguidance 1.9 gets them.

Intersections of patterns are limited: `&` and `~` in grammars, and patterns that a schema joins. llguidance pairs every
class of characters in one part with every class in the other parts, in one call, before it checks its limits. That may
happen some tokens into an answer, beyond any trial. A class takes some five characters, so the product of the parts'
lengths bounds the time of a call. A complement (`& ~`) does not multiply.
"""

import json
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from service.constraints.references import References

#: The largest product of the lengths, in characters. The worst known case below it takes a fifth of a second.
MAX_PRODUCT = 4_000_000
#: the assumed lengths of a format, and of a terminal that is defined elsewhere
_FORMAT, _IMPORTED = 50, 50
#: added to the length of a schema's pattern, since any text may stand around the match
_SEARCHED = 8
#: the longest chain of names that refer to each other
_MAX_DEPTH = 100
_IGNORE = "%ignore"
_OTHER_VALUES = ("additionalProperties", "additionalItems")

#: (nesting depth of a value within another one, name of its property; None: any name)
ValuePath = tuple[int, str | None]
Products = dict[ValuePath, float]
#: the value itself, and the names of its properties, which patterns describe, too
_ITSELF: ValuePath = (0, None)
_NAMES: ValuePath = (-1, None)
#: deeper values count as one
_DEEPEST = 8

_TOKEN = re.compile(
    r'(?:#|//)[^\n]*|(?P<text>"(?:\\.|[^"\\])*"i?|/(?:\\.|[^/\\])+/[imslux]*|<[^<>\s]+>)|(?P<json>%(?:json|llguidance|regex)\b)'
    r"|(?P<name>[A-Za-z_][\w-]*|%ignore)|(?P<multiplies>&(?![ \t]*~))|(?P<operator>[&~])|(?P<colon>:)|.",
    re.DOTALL,
)


def check_grammar(text: str) -> None:
    """ValueError if the product of a terminal of a grammar in Lark's form is too large."""
    terminals = _Terminals(text)
    for schema in terminals.schemas:
        check_schema(schema)
    if terminals.intersect:
        for name in filter(_is_terminal, terminals.bodies):
            _check(terminals.product(name), name)


def check_schema(schema: Any) -> None:
    """ValueError if the product of the patterns that a schema joins for one value is too large."""
    text = json.dumps(schema)
    if '"patternProperties": ' in text or len(re.findall('"(?:pattern|format)": ', text)) > 1:
        if len(re.findall(r'"\$?id": "', text)) > sum(name in schema for name in ("id", "$id")):
            raise ValueError("$id is allowed beside several patterns at the root only")
        try:
            products = _Joined(schema).products
        except (TypeError, AttributeError):
            raise ValueError("a keyword has a value of the wrong type") from None
        _check(_greatest(products), "a string")


def _is_terminal(name: str) -> bool:
    return name == _IGNORE or name.isupper()


def _check(product: float, name: str) -> None:
    if product > MAX_PRODUCT:
        raise ValueError(
            f"{name} intersects patterns whose lengths multiply to {product:,.0f}, allowed are {MAX_PRODUCT:,}"
        )


class _Terminals:
    """The definitions in a grammar. `schemas`: the values of `%json`. `intersect`: whether there is `&` or `~`."""

    def __init__(self, text: str) -> None:
        self.bodies: defaultdict[str, list[re.Match[str]]] = defaultdict(list)
        self.schemas: list[Any] = []
        self._products: dict[str, float] = {}
        body, end = self.bodies[""], 0
        while (token := _TOKEN.match(text, end)) is not None:
            end = token.end()
            if token["json"]:
                start = end + len(text[end:]) - len(text[end:].lstrip())
                schema, end = json.JSONDecoder().raw_decode(text, start)
                self.schemas.append(schema)
            elif token["name"] == _IGNORE:
                body = self.bodies[_IGNORE]
            elif token["colon"] and body and body[-1]["name"]:
                body = self.bodies[body.pop()["name"]]
            elif token.lastgroup:
                body.append(token)
        self.intersect = any(
            token["multiplies"] or token["operator"] for body in self.bodies.values() for token in body
        )

    def product(self, name: str, depth: int = 0) -> float:
        """An upper bound of the product of a terminal's parts, for any order of its operators."""
        if depth > _MAX_DEPTH:
            return math.inf
        if name not in self._products:
            body = self.bodies[name]
            parts = 1 + sum(bool(token["multiplies"]) for token in body)
            if any(token["operator"] for token in body):
                parts = max(2, parts)  # a complement takes the square of its length
            self._products[name] = _multiplied(sum(self._length(token, depth) for token in body), parts)
        return self._products[name]

    def _length(self, token: re.Match[str], depth: int) -> float:
        name = token["name"]
        if name is None:
            return len(token["text"] or "")
        if not _is_terminal(name):
            return 0  # a rule, which is no part of a terminal
        return self.product(name, depth + 1) if name in self.bodies else _IMPORTED


class _Joined:
    """The products of the patterns that a schema joins. `products`: the products by the path of the value."""

    def __init__(self, schema: Any) -> None:
        self._references = References(schema)
        self._referred: dict[str, Products] = {}
        before: dict[str, Products] | None = None
        self.products: Products = {}
        while self._referred != before and _greatest(self.products) <= MAX_PRODUCT:
            before = dict(self._referred)
            self.products = self._products(schema)
            for path in list(self._referred):
                self._referred[path] = self._products(self._target(path))

    def _products(self, schema: Any) -> Products:
        if not isinstance(schema, dict):
            return {}
        pattern = schema.get("pattern")
        length = len(pattern) + _SEARCHED if isinstance(pattern, str) else 1
        parts: list[Products] = [
            {_ITSELF: float(length * (_FORMAT if "format" in schema else 1))},
            self._within(schema),
        ]
        if isinstance(path := schema.get("$ref"), str):
            parts.append(self._referred.setdefault(path, {}))
        parts += [self._products(part) for part in schema.get("allOf", ())]
        parts += [_largest(self._products(part) for part in schema.get(name, ())) for name in ("anyOf", "oneOf")]
        return {
            path: math.prod(max(part.get(path, 1.0), part.get((path[0], None), 1.0)) for part in parts)
            for path in {path for part in parts for path in part}
        }

    def _within(self, schema: Mapping[str, Any]) -> Products:
        """The products of the values within a value, and of its property names."""
        patterns: dict[str, Any] = schema.get("patternProperties", {})
        unnamed = [*patterns.values(), *schema.get("prefixItems", ())]
        items = schema.get("items")
        unnamed += items if isinstance(items, list) else [items]
        children: list[tuple[str | None, Any]] = [*schema.get("properties", {}).items()]
        children += [(None, child) for child in (*unnamed, *(schema.get(name) for name in _OTHER_VALUES))]
        names: Products = {_NAMES: _multiplied(len("".join(patterns)), 2)}
        return _largest([names, *(_nested(self._products(child), name) for name, child in children)])

    def _target(self, path: str) -> Any:
        """The part of the schema that a reference leads to. ValueError if it is not a plain path."""
        try:
            if path.endswith("/"):
                raise KeyError(path)
            return self._references.target(path)
        except KeyError:
            raise ValueError(
                f"$ref is {path!r}, allowed beside several patterns are paths such as #/$defs/name"
            ) from None


def _nested(products: Products, name: str | None) -> Products:
    """The products of a property's value, by their paths from the object with the property. `name`: the property."""
    return _largest(
        {path if path == _NAMES else (min(path[0] + 1, _DEEPEST), path[1] if path[0] else name): value}
        for path, value in products.items()
    )


def _largest(alternatives: Iterable[Products]) -> Products:
    largest: Products = {}
    for products in alternatives:
        for name, value in products.items():
            largest[name] = max(value, largest.get(name, 1.0))
    return largest


def _greatest(products: Products) -> float:
    return max(products.values(), default=1.0)


def _multiplied(length: float, parts: int) -> float:
    """The largest product of the lengths of `parts` parts with `length` characters in all. Equal parts have it."""
    try:
        return max(length, (length / parts) ** parts)
    except OverflowError:
        return math.inf
