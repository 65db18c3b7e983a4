"""Patterns mean in a schema what they mean in JavaScript.

`ecma_patterns.json` has the texts that Node 20 finds: `RegExp(pattern, "u").test(text)`, or without `u` if that fails.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import SchemaValidator, ValidationError, core_schema

from service.constraints.ecma_patterns import rust_pattern
from service.constraints.json_schema import supported_schema
from tests.constraints.checkpoints import accepts, lenient

TABLE: dict[str, Any] = json.loads((Path(__file__).parent / "ecma_patterns.json").read_text("utf-8"))
_STRING = {"type": "string"}
_NULL = {"type": "null"}


def matches(pattern: str, text: str) -> bool:
    """Whether the engine of the crate `regex` finds a pattern in a text."""
    try:
        SchemaValidator(core_schema.str_schema(pattern=pattern)).validate_python(text)
    except ValidationError:
        return False
    return True


@pytest.mark.parametrize("pattern", TABLE["matched"])
def test_a_pattern_allows_the_texts_that_javascript_matches(pattern: str) -> None:
    expected = TABLE["matched"][pattern]
    translated = rust_pattern(pattern)
    assert translated is not None
    assert [text for text in TABLE["texts"] if matches(translated, text)] == expected
    grammar = lenient({**_STRING, "pattern": pattern})
    answers = {text: json.dumps(text, ensure_ascii=False) for text in TABLE["texts"]}
    assert [text for text, answer in answers.items() if accepts(grammar, answer)] == expected


@pytest.mark.parametrize("pattern", TABLE["unusable"])
def test_a_pattern_that_cannot_be_used_is_ignored_alone(pattern: str) -> None:
    parts = {"a": {**_STRING, "pattern": pattern, "maxLength": 1}, "b": {**_STRING, "pattern": "^[a-c]$"}}
    schema = {"type": "object", "properties": parts, "required": ["a", "b"]}
    assert supported_schema(schema).ignored == ("properties.a.pattern",)
    grammar = lenient(schema)
    assert accepts(grammar, '{"a": "?", "b": "c"}')
    assert not accepts(grammar, '{"a": "??", "b": "c"}')
    assert not accepts(grammar, '{"a": "?", "b": "d"}')
    names = {"type": "object", "patternProperties": {pattern: _NULL, "^{b}$": _NULL}, "additionalProperties": False}
    assert supported_schema(names).ignored == ("patternProperties",)
    grammar = lenient(names)
    assert accepts(grammar, '{"{b}": null, "c": null}')
    assert not accepts(grammar, '{"{b}": 1}')
    assert supported_schema({"propertyNames": {"pattern": pattern}}).ignored == ("propertyNames",)


@pytest.mark.parametrize(
    ("schema", "allowed", "refused"),
    [
        ({"propertyNames": {"pattern": "^{[a-c]}$"}}, '{"{b}": 1}', '{"b": 1}'),
        ({"patternProperties": {"^[a&&b]$": _NULL}, "additionalProperties": False}, '{"&": null}', '{"c": null}'),
        ({"patternProperties": {r"^\d$": _NULL, "^[0-9]$": {"enum": [None, 1]}}}, '{"1": null}', '{"1": 1}'),
        (
            {"properties": {"a": _NULL}, "patternProperties": {"^[[]a]?$": _NULL}},
            '{"a": null, "[a": null}',
            '{"[a": 1}',
        ),
    ],
)
def test_names_have_patterns_of_javascript_too(schema: Any, allowed: str, refused: str) -> None:
    grammar = lenient({"type": "object", **schema})
    assert accepts(grammar, allowed)
    assert not accepts(grammar, refused)


_PARTS = st.lists(
    st.sampled_from([*"abc()[]{}|^$.*+?-&~,\\09 é", "(?:", "(?<n>", "{2}", "[^", r"\d", r"\S", r"\-", r"\u{41}"]),
    max_size=9,
).map("".join)


@given(_PARTS)
def test_a_translated_pattern_is_rusts_and_javascripts(pattern: str) -> None:
    if (translated := rust_pattern(pattern)) is not None:
        matches(translated, "a")  # SchemaError if it is not Rust's
        assert rust_pattern(translated) == translated
