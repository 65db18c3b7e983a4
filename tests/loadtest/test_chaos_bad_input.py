"""The check of refusals, and that every request meant to be bad is bad."""

from __future__ import annotations

import json
import random
from typing import Any

import httpx
import pytest

from loadtest.chaos.bad_input import BAD_FIELDS, bad_request, fault

GOOD = {"messages": [{"role": "user", "content": "What is 1 + 1?"}], "seed": 1, "mode": "static", "stream": False}
ERROR = {"error": {"code": "invalid_request", "message": "it is wrong"}}


def test_a_refusal_says_why() -> None:
    assert fault(httpx.Response(422, json=ERROR)) == ""


@pytest.mark.parametrize(
    ("response", "said"),
    [
        (httpx.Response(200, json={}), "status 200"),
        (httpx.Response(500, json=ERROR), "status 500"),
        (httpx.Response(422, text="no"), "422 without an error object"),
        (httpx.Response(422, json=[]), "422 without an error object"),
        (httpx.Response(422, json={"error": {"code": "x", "message": ""}}), "422 does not say why"),
    ],
)
def test_anything_else_is_a_fault(response: httpx.Response, said: str) -> None:
    assert fault(response) == said


def test_bad_requests_differ_from_good_ones_and_come_in_all_kinds() -> None:
    draw = random.Random(3)
    drawn = [bad_request(draw, GOOD) for _ in range(200)]
    good = json.dumps({name: GOOD[name] for name in ("messages", "seed")}).encode()
    assert all((method, path, body) != ("POST", "/generate", good) for method, path, body in drawn)
    assert len({(method, path) for method, path, _ in drawn}) == 4
    bodies = [parsed(body) for _, path, body in drawn if path == "/generate"]
    assert all(any(wrong.items() <= body.items() for body in bodies) for wrong in BAD_FIELDS)


def parsed(body: bytes) -> dict[str, Any]:
    """The object that a body is; an empty one if it is none."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
