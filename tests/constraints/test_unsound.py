"""What grammars of number schemas allow is what the schemas say, or the schema is refused."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from service.constraints.constraint import Constraint
from service.constraints.grammars import compile_grammar
from service.constraints.json_schema import supported_schema
from service.errors import InvalidRequest
from tests.constraints.checkpoints import DEMO, tokenizer, vocabulary

_TEXTS = [
    sign + text
    for sign in ("", "-")
    for text in (
        "0",
        "0.0",
        "0.1",
        "0.01",
        "0.25",
        "0.5",
        "0.51",
        "0.75",
        "1",
        "1.0",
        "1.01",
        "1.5",
        "1.51",
        "2",
        "10",
        "11",
    )
]
_BOUNDS = (None, -2, -1.5, -1, -0.5, 0, 0.25, 1, 1.5, 10)


def fits(value: float, schema: dict[str, Any]) -> bool:
    return (
        value >= schema.get("minimum", value)
        and value <= schema.get("maximum", value)
        and ("exclusiveMinimum" not in schema or value > schema["exclusiveMinimum"])
        and ("exclusiveMaximum" not in schema or value < schema["exclusiveMaximum"])
    )


@pytest.mark.parametrize(("low", "high"), [("minimum", "maximum"), ("exclusiveMinimum", "exclusiveMaximum")])
def test_no_number_out_of_bounds_is_allowed(low: str, high: str) -> None:
    ids = {text: tuple(tokenizer(DEMO).encode(text).ids) for text in _TEXTS}
    compiled = 0
    for least, most, other in itertools.product(_BOUNDS, _BOUNDS, ("maximum", high)):
        bounds = {low: least, other: most}
        schema = {"type": "number"} | {name: bound for name, bound in bounds.items() if bound is not None}
        try:
            constraint = Constraint.json(schema, "x")
            grammar = compile_grammar(constraint, vocabulary(DEMO))
        except InvalidRequest:
            continue
        compiled += 1
        for text in _TEXTS:
            way = grammar.open()
            taken = way.allowed((), ids[text]) == len(ids[text]) and way.complete(ids[text])
            assert fits(float(text), schema) or not taken, (schema, text)
    assert compiled > 50


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ({"type": "number", "exclusiveMinimum": 0, "maximum": 0.5}, "exclusiveMinimum"),
        (
            {"properties": {"a": {"anyOf": [{}, {"minimum": -1.5, "exclusiveMaximum": -1}]}}},
            "properties.a.anyOf.1.exclusiveMaximum",
        ),
        ({"items": {"type": "number", "exclusiveMinimum": 1.0, "maximum": 1.5}}, "items.exclusiveMinimum"),
        ({"properties": {"const": {"exclusiveMinimum": 0, "maximum": 0.5}}}, "properties.const.exclusiveMinimum"),
    ],
)
def test_a_narrow_exclusive_bound_is_not_supported(schema: Any, path: str) -> None:
    assert supported_schema(schema).ignored == (path,)
    with pytest.raises(InvalidRequest, match=path):
        Constraint.json(schema, "x")
    compile_grammar(Constraint.json(schema, "x", strict=False), vocabulary(DEMO))


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "exclusiveMinimum": 0, "maximum": 0.5},
        {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
        {"type": "number", "minimum": 0, "maximum": 0.5},
        {"exclusiveMinimum": True, "minimum": 5},
        {"enum": [{"exclusiveMinimum": 0, "maximum": 0.5}]},
        {"default": {"exclusiveMinimum": 0, "maximum": 0.5}},
        True,
    ],
)
def test_others_pass(schema: Any) -> None:
    assert supported_schema(schema).ignored == ()
