"""Constrained answers over HTTP in this process: JSON, patterns, choices, grammars; whole and streamed."""

import json
import re
from collections.abc import AsyncIterator
from typing import Any

import httpx
import jsonschema
import pytest

from service.decode.modes import MODES
from service.replica.replica import Replica
from tests.gateway.generate.helpers import ask, body, frames, refused
from tests.gateway.helpers import over

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}, "n": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["ok", "n"],
    "additionalProperties": False,
}
FORM = {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": SCHEMA}}


@pytest.fixture
async def bytes_http(bytewise: Replica) -> AsyncIterator[httpx.AsyncClient]:
    async with over(bytewise) as http:
        yield http


def constrained(**fields: Any) -> dict[str, Any]:
    return body(**{"max_new_tokens": 60, "seed": 5} | fields)


@pytest.mark.parametrize("mode", [*MODES, None])
async def test_a_schema_holds_in_every_mode(bytes_http, mode):
    request = constrained(mode=mode, temperature=1.0, response_format=FORM)
    answer = await ask(bytes_http, request)
    jsonschema.validate(json.loads(answer["text"]), SCHEMA)
    assert (answer["finish_reason"], answer["constraint_met"]) == ("stop", True)
    assert answer["stats"]["forced_tokens"] > 5
    assert answer["stats"]["tokens_per_forward"] > 1
    streamed = await frames(bytes_http, request)
    assert "".join(data["text"] for name, data in streamed if name == "block") == answer["text"]
    assert streamed[-1][1]["constraint_met"] is True


@pytest.mark.parametrize(
    ("fields", "pattern"),
    [
        ({"regex": "[0-9]{2}:[a-c]+x"}, "[0-9]{2}:[a-c]+x"),
        ({"choice": ["yes", "no", "I do not know"]}, "yes|no|I do not know"),
        ({"grammar": 'start: "<" /[a-z]{3}/ ">"'}, "<[a-z]{3}>"),
        ({"grammar": 'root ::= "(" [0-9] ")"'}, r"\([0-9]\)"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"const": {"a": [1]}}}}},
            r'{"a": \[1\]}',
        ),
    ],
)
async def test_patterns_choices_and_grammars(bytes_http, fields, pattern):
    answer = await ask(bytes_http, constrained(**fields))
    assert answer["constraint_met"] is True
    assert re.fullmatch(pattern, answer["text"])


async def test_a_json_object_is_an_object(bytes_http):
    answer = await ask(bytes_http, constrained(response_format={"type": "json_object"}, max_new_tokens=30))
    assert answer["text"].startswith("{")
    if answer["constraint_met"]:
        assert isinstance(json.loads(answer["text"]), dict)


async def test_the_form_text_is_no_constraint(bytes_http):
    free, plain = [await ask(bytes_http, constrained(**form)) for form in ({}, {"response_format": {"type": "text"}})]
    assert free["token_ids"] == plain["token_ids"]
    assert "constraint_met" not in free
    assert "constraint_met" not in plain
    assert free["stats"]["forced_tokens"] == 0


class TestCut:
    async def test_a_cut_by_length_leaves_the_constraint_unmet(self, bytes_http):
        answer = await ask(bytes_http, constrained(response_format=FORM, max_new_tokens=4))
        assert (answer["text"], answer["finish_reason"], answer["constraint_met"]) == ('{"ok', "length", False)

    async def test_a_cut_by_a_stop_text_leaves_it_unmet(self, bytes_http):
        answer = await ask(bytes_http, constrained(response_format=FORM, stop=['"n"']))
        assert answer["text"].endswith(", ")
        assert (answer["finish_reason"], answer["constraint_met"]) == ("stop", False)


@pytest.mark.parametrize(
    ("fields", "param", "text"),
    [
        ({"regex": "a("}, "regex", "unclosed group"),
        ({"grammar": "start: b"}, "grammar", 'unknown name: "b"'),
        ({"regex": "a", "choice": ["a"]}, "choice", "regex and choice are given"),
        ({"regex": "a", "ignore_eos": True}, "ignore_eos", "which regex does not allow"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "is missing"),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"schema": {"properties": {"a": {"minItems": "1"}}}},
                }
            },
            "response_format.json_schema.schema",
            "at /properties/a: ",
        ),
        ({"choice": [""]}, "choice.0", '""'),
        ({"regex": "a" * 5000}, "regex", "4096"),
    ],
)
async def test_a_bad_constraint_is_refused_before_decoding(bytes_http, fields, param, text):
    detail = await refused(bytes_http, constrained(**fields))
    assert detail["param"] == param
    assert text in detail["message"]


async def test_a_tokenizer_of_words_cannot_be_constrained(http):
    detail = await refused(http, constrained(regex="a"))
    assert detail["code"] == "constraint_not_available"
