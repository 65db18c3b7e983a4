"""Sizes that constraints may have, checked before anything is compiled."""

import pickle
from collections.abc import Callable
from typing import Any

import pytest

from service.constraints.constraint import MAX_CHOICES, MAX_DEPTH, MAX_GRAMMAR, MAX_REGEX, MAX_SCHEMA, Constraint
from service.errors import InvalidRequest


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(depth):
        schema = {"items": schema}
    return schema


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Constraint.regex("a" * (MAX_REGEX + 1)), "regex has 4097 characters, allowed are 4096"),
        (lambda: Constraint.grammar("a" * (MAX_GRAMMAR + 1)), "grammar has 16385 characters, allowed are 16384"),
        (lambda: Constraint.choice([]), "choice has 0 texts, allowed are 1 to 1000"),
        (lambda: Constraint.choice(["a", ""]), "none of them empty"),
        (lambda: Constraint.choice(["a"] * (MAX_CHOICES + 1)), "choice has 1001 texts"),
        (lambda: Constraint.choice(["a" * MAX_SCHEMA]), "choice has"),
        (lambda: Constraint.json({"const": "a" * MAX_SCHEMA}, "form"), "form has"),
        (lambda: Constraint.json(nested(2 * MAX_DEPTH), "form"), "form is nested too deeply, allowed are 64 levels"),
        (lambda: Constraint.json(nested(100_000), "form"), "form is nested too deeply"),
    ],
)
def test_a_constraint_beyond_a_limit_is_refused_by_its_field(make: Callable[[], Constraint], message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        make()
    assert message in caught.value.message
    assert caught.value.param in ("regex", "grammar", "choice", "form")


def test_a_constraint_at_a_limit_passes() -> None:
    assert len(Constraint.regex("a" * MAX_REGEX).source) == MAX_REGEX
    assert Constraint.json(nested(MAX_DEPTH), "form").kind == "json"


def test_it_crosses_processes_and_equal_ones_are_equal() -> None:
    first, second = (Constraint.json({"type": "integer"}, "form") for _ in range(2))
    assert first == second == pickle.loads(pickle.dumps(first))
    assert hash(first) == hash(second)
    assert first != Constraint.json({"type": "number"}, "form")


def test_a_repr_has_no_text_of_the_user() -> None:
    assert "secret" not in repr(Constraint.regex("secret"))
