"""Wrong constraints are refused with their place; hostile ones are compiled or refused in bounded time."""

import json
import random
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from service.constraints.compiler import GrammarCompiler
from service.constraints.constraint import Constraint
from service.constraints.grammars import compile_grammar
from service.constraints.vocabulary import TokenVocabulary
from service.errors import ConstraintFailed, ConstraintNotAvailable, InvalidRequest
from tests.constraints.checkpoints import DEMO, NAMES, tokenizer, vocabulary
from tests.constraints.schemas import HARD, random_schema
from tests.constraints.walks import walk
from tests.tiny import GOLDEN


def refusal(constraint: Constraint) -> str:
    with pytest.raises(InvalidRequest) as caught:
        compile_grammar(constraint, vocabulary(DEMO))
    assert caught.value.param == constraint.param
    assert caught.value.status == 422
    assert len(caught.value.message) < 600
    return caught.value.message


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"type": "strin"}, "at /: Invalid type: strin"),
        ({"anyOf": [{"type": "null"}, {"minItems": "1"}]}, "at /anyOf/1: "),
        ({"properties": {"q": {"type": "string", "minLength": "1"}}}, "at /properties/q: "),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"type": "text"}}}, "at /$defs/a: "),
        ({"$id": "file:///etc/x", "$ref": "file:///etc/passwd"}, "at /: "),
        ({"$id": "http://127.0.0.1:1/", "$ref": "http://127.0.0.1:1/x"}, "at /: "),
        ({"type": "integer", "minimum": 5, "maximum": 4}, "Unsatisfiable schema"),
        ({"type": "object", "properties": {"a": False}, "required": ["a"]}, "Unsatisfiable schema"),
        ({"oneOf": [{"type": "integer"}, {"$ref": "#/$defs/x"}], "$defs": {"x": {"type": "text"}}}, "at /$defs/x: "),
    ],
)
def test_a_wrong_schema_is_refused_with_its_path(schema: dict[str, Any], message: str) -> None:
    refused = refusal(Constraint.json(schema, "form"))
    assert refused.startswith("form cannot be used: ")
    assert message in refused


@pytest.mark.parametrize(
    ("constraint", "message"),
    [
        (Constraint.regex("a("), "unclosed group"),
        (Constraint.regex("(?=a)b"), "look-around"),
        (Constraint.grammar('start: a\na: b "x"\n'), 'at 2(4): unknown name: "b"'),
        (Constraint.grammar('start: "x'), "1(10): lexer error"),
        (Constraint.grammar("root ::= ("), "grammar cannot be used"),
        (Constraint.grammar('start: a\na: a "x"\n'), "nothing can come next"),
        (Constraint.grammar("start: <|MASK|>"), "no token can come"),
        (Constraint.grammar("start: <[4]>"), "no token can come"),
        (Constraint.choice(["<|MASK|>"]), "no token can come"),
        (Constraint.grammar('start: %json {"$ref": "file:///etc/passwd"}'), "grammar cannot be used"),
        (
            Constraint.grammar('start: %json {"oneOf": [{"minimum": 0}, {}]}'),
            "the parts of oneOf do not exclude each other",
        ),
    ],
)
def test_a_wrong_pattern_or_grammar_is_refused(constraint: Constraint, message: str) -> None:
    assert message in refusal(constraint)


def chain(count: int) -> dict[str, Any]:
    links = {f"a{number}": {"$ref": f"#/$defs/a{number + 1}"} for number in range(count)}
    return {"$ref": "#/$defs/a0", "$defs": {**links, f"a{count}": {"type": "null"}}}


#: what took a library down, or took it long, while this was written; and more of the kind
HOSTILE: dict[str, Constraint] = {
    "references in a chain": Constraint.json(chain(2000), "form"),
    "a reference to itself": Constraint.json({"$ref": "#"}, "form"),
    "doubling": Constraint.json(
        {
            "$ref": "#/$defs/a0",
            "$defs": {
                **{f"a{n}": {"allOf": [{"$ref": f"#/$defs/a{n + 1}"}] * 2} for n in range(30)},
                "a30": {"type": "object"},
            },
        },
        "form",
    ),
    "many properties": Constraint.json({"properties": {f"p{n}": {"type": "null"} for n in range(1500)}}, "form"),
    "many names in any order": Constraint.json(
        {"type": "object", "properties": {f"p{n}": {"type": "null"} for n in range(400)}}, "form"
    ),
    "many values": Constraint.json({"enum": [f"value {n}" for n in range(3000)]}, "form"),
    "a billion items": Constraint.json({"type": "array", "items": {"type": "null"}, "minItems": 10**9}, "form"),
    "multiples": Constraint("json", '{"type": "integer", "multipleOf": 999999937, "minimum": 3}', "form"),
    "powers of repetition": Constraint.regex("((((a{1,50}){1,50}){1,50}){1,50}){1,50}"),
    "a large automaton": Constraint.regex(".*a.{24}"),
    "parentheses": Constraint.regex("(" * 2000 + ")" * 2000),
    "letters of all languages": Constraint.regex("(\\w{1,1000}\\W{1,1000}){100}"),
    "nothing but options": Constraint.grammar("start: " + " ".join(['"a"?'] * 3000)),
    "ambiguity": Constraint.grammar('start: a\na: a a | "x" | a a a'),
    "nested groups": Constraint.grammar("start: " + "(" * 5000 + '"a"' + ")" * 5000),
}


@pytest.fixture(scope="module")
def compiler() -> Iterator[GrammarCompiler]:
    compiler = GrammarCompiler(lambda: vocabulary(DEMO))
    yield compiler
    compiler.close()


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.timeout(60)
async def test_hostile_constraints_are_refused_or_followed(name: str, compiler: GrammarCompiler) -> None:
    """The process lives on, and an answer ends or is ended. Slow machines may take long, but not for ever."""
    with suppress(InvalidRequest, ConstraintFailed):
        grammar = await compiler.compile(HOSTILE[name])
        walk(grammar, vocabulary(DEMO).eos[0], random.Random(name), (), 100)


@pytest.mark.parametrize("name", NAMES)
def test_all_schemas_of_these_tests_compile(name: str) -> None:
    for schema in (*HARD, *(random_schema(random.Random(seed)) for seed in range(50))):
        assert compile_grammar(Constraint.json(schema, "form"), vocabulary(name)), json.dumps(schema)


def test_a_tokenizer_without_bytes_cannot_be_constrained() -> None:
    words = (GOLDEN / "sdar-mrp-random-a" / "tokenizer.json").read_text("utf-8")
    with pytest.raises(ConstraintNotAvailable, match="does not say which bytes its tokens are"):
        TokenVocabulary(words, 512, (510,))


def test_a_checkpoint_without_an_end_token_cannot_be_constrained() -> None:
    with pytest.raises(ConstraintNotAvailable, match="no end token"):
        TokenVocabulary(tokenizer(DEMO).to_str(), 1024, ())
