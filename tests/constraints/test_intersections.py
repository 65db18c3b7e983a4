"""Intersections that multiply too much are refused, wherever they hide; common ones are not."""

import itertools
import json
import string
from typing import Any

import pytest

from service.constraints.constraint import Constraint
from service.constraints.grammars import compile_grammar
from service.errors import InvalidRequest
from tests.constraints.checkpoints import DEMO, compiled, vocabulary

CLASSES = [f"[^{''.join(letters)}]?" for n in (1, 2) for letters in itertools.combinations(string.ascii_lowercase, n)]
#: nothing of it shows in the first eight tokens of an answer
HIDDEN = [f"(c{{8}}({''.join(CLASSES[start : start + 20])}z)?)?" for start in range(40)]
LONG = "".join(CLASSES * 2)
BOTH = {"allOf": [{"type": "string", "pattern": f"^{pattern}$"} for pattern in HIDDEN[:8]]}


def terminals(*lines: str) -> Constraint:
    return Constraint.grammar("\n".join(("start: T", *lines)))


def schema(value: dict[str, Any]) -> Constraint:
    return Constraint.json(value, "form")


def of_a(value: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": value}}


REFUSED = {
    "forty patterns": terminals("T: " + " & ".join(f"/{pattern}/" for pattern in HIDDEN)),
    "on several lines": terminals("T: A", 'A: ("x"', "  | " + " & ".join(f"/{pattern}/" for pattern in HIDDEN) + ")"),
    "names that double": terminals(
        f"A: /{HIDDEN[0]}/ & /{HIDDEN[1]}/", 'B: (A "a"?) & (A "b"?)', 'T: (B "a"?) & (B "b"?)'
    ),
    "names after flags": terminals('T: "x"iA & "y"iA', f"A: /{LONG}/"),
    "a long chain of names": terminals("T: R0", *(f"R{n}: R{n + 1}" for n in range(200)), "R200: /a/ & /b/"),
    "a long complement": terminals(f"T: /(?s:.*)/ & ~/{LONG}/"),
    "what is ignored": terminals('T: "a"', "%ignore " + "X & " * 40 + "X", f"X: /{HIDDEN[0]}/"),
    "patterns of a schema": schema(BOTH),
    "a schema in a grammar": Constraint.grammar(f"start: %json {json.dumps(BOTH)}"),
    "references": schema(
        {"properties": {"x": {"$ref": "#/$defs/a~1"}}, "$defs": {"a/": {"allOf": [{"$ref": "#/$defs/b"}]}, "b": BOTH}}
    ),
    "properties of one name": schema({"allOf": [of_a(part) for part in BOTH["allOf"]]}),
    "properties of any name": schema(
        {"allOf": [of_a(BOTH["allOf"][0]), *({"additionalProperties": part} for part in BOTH["allOf"])]}
    ),
    "names of properties": schema({"patternProperties": {LONG: {}}}),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_an_intersection_beyond_the_limit_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match="lengths multiply to"):
        compile_grammar(REFUSED[name], vocabulary(DEMO))


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"$ref": "#name", "$anchor": "name"}, "is '#name', allowed beside several patterns are paths"),
        ({"$ref": "#/a/b", "$anchor": "name"}, "is '#/a/b', allowed"),
        ({"$ref": "#/properties/a/"}, "is '#/properties/a/', allowed"),
        ({"$id": "http://a/b"}, "at the root only"),
        ({"anyOf": 1}, "wrong type"),
        ({"properties": []}, "wrong type"),
    ],
)
def test_a_part_that_cannot_be_counted_beside_several_patterns_is_refused(part: dict[str, Any], message: str) -> None:
    patterns = {name: {"type": "string", "pattern": name} for name in "ab"}
    with pytest.raises(InvalidRequest, match=message):
        compile_grammar(schema({"properties": {**patterns, "c": part}}), vocabulary(DEMO))


def test_the_limit_is_said() -> None:
    with pytest.raises(InvalidRequest, match=r"^grammar cannot be used: T intersects .* 4,840,000, allowed are 4,000,000$"):  # fmt: skip  # noqa: E501
        compile_grammar(terminals(f"T: /{'a' * 2198}/ & /{'a' * 2198}/"), vocabulary(DEMO))


EMAIL = r"^\w+([\.-]?\w+)*@\w+([\.-]?\w+)*(\.\w{2,})+$"
BASE = of_a({"type": "string", "pattern": "^[a-z]{3}$"})
PASS = {
    "a password": terminals("T: /.{8,20}/ & /.*[0-9].*/ & /.*[A-Z].*/ & /[^ ]*/"),
    "free text": terminals("T: /(?s:.*)/ " + " ".join(f"& ~/(?s:.*)<{tag}>(?s:.*)/" for tag in "abcdefgh")),
    "no operators": terminals(f'T: "a & b ~ c" | /&~{"x" * 3000}/ # a & b & c & {"d" * 3000}'),
    "a length": schema({"type": "string", "format": "email", "pattern": EMAIL, "minLength": 6}),
    "two patterns": schema({"allOf": [BASE, of_a({"pattern": ".*c$"})]}),
    "many formats": schema(
        {"allOf": [{"properties": {f"a{n}": {"type": "string", "format": "date-time"}}} for n in range(12)]}
    ),
    "alternatives": schema({"anyOf": BOTH["allOf"]}),
    "a tree of heirs": schema(
        {
            "$ref": "#/$defs/node",
            "$defs": {
                "base": BASE,
                "node": {
                    "allOf": [
                        {"$ref": "#/$defs/base"},
                        {"properties": {"children": {"type": "array", "items": {"$ref": "#/$defs/node"}},
                                        "at": {"type": "string", "format": "date"}}},
                    ]
                },
            },
        }
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PASS)
def test_common_intersections_pass(name: str) -> None:
    assert compiled(DEMO, PASS[name])
