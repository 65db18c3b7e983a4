"""Structural tags mean what they mean in xgrammar; what is not served is refused by its name."""

import random
from typing import Any

import pytest

from service.constraints.constraint import Constraint, Preamble
from service.constraints.grammars import compile_grammar
from service.constraints.structural_tags import older_format
from service.constraints.vocabulary import TokenVocabulary
from service.errors import InvalidRequest
from tests.constraints.checkpoints import DEMO, accepts, tokenizer, vocabulary
from tests.constraints.walks import text_of, walk
from tests.gateway import chatting

SCHEMA = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}
JSON = '{"a": 1}'
ANY = {"type": "any_text"}
PARAM = "response_format.format"


def tag(begin: str, end: str = "</f>", content: Any = None) -> dict[str, Any]:
    return {"begin": begin, "content": content or {"type": "json_schema", "json_schema": SCHEMA}, "end": end}


TRIGGERED: dict[str, Any] = {"type": "triggered_tags", "triggers": ["<f="], "tags": [tag("<f=x>"), tag("<f=y>")]}
SEPARATED: dict[str, Any] = {"type": "tags_with_separator", "tags": TRIGGERED["tags"], "separator": ","}
X, Y = f"<f=x>{JSON}</f>", f"<f=y>{JSON}</f>"
CASES: list[tuple[dict[str, Any], list[str], list[str]]] = [
    (TRIGGERED, ["", "abc", X, f"hi {Y} and {X} b"], ["<f=", "<f=z>", X[:-1], "<f=x>{}</f>", f"{X}<f="]),
    ({**TRIGGERED, "at_least_one": True}, [X, f"{X} b {Y}"], ["", "abc", f"a{X}"]),
    ({**TRIGGERED, "stop_after_first": True}, ["a", f"a{X}"], [f"{X}b", X + Y]),
    ({**TRIGGERED, "stop_after_first": True, "at_least_one": True}, [X], ["", "a", f"{X}b"]),
    ({**TRIGGERED, "triggers": ["<f=x", "<f=y"]}, ["<f=", f"a{X}b{Y}"], ["<f=x", "<f=y>"]),
    (SEPARATED, ["", X, f"{X},{Y}"], [f"{X},", "a", X + Y]),
    ({**SEPARATED, "at_least_one": True, "stop_after_first": True}, [X], ["", f"{X},{Y}"]),
    ({**SEPARATED, "separator": ""}, [X, X + Y], [f"{X},{Y}"]),
    (
        {"type": "sequence", "elements": [
            {"type": "const_string", "value": "A/"}, {"type": "regex", "pattern": "[0-9]/+"},
            {"type": "or", "elements": [{"type": "const_string", "value": "b"},
                                        {"type": "grammar", "grammar": 'start: "x" | "y"'}]},
        ]}, ["A/1/b", "A/2//y"], ["A/b", "A/1/z", ""],
    ),
    ({"type": "tag", **tag("<t>", "</t>", ANY)}, ["<t></t>", "<t>abc < def</t>"], ["<t>a</t>b", "<t>a", "a"]),
    ({"type": "tag", **tag("<t>", "</t>", {**ANY, "excluded_str": ["no"]})}, ["<t></t>", "<t>n</t>"], ["<t>nono</t>"]),
    ({**ANY, "excluded_str": ["no"]}, ["", "n o"], ["no"]),
    (
        {"type": "sequence", "elements": [{"type": "tag", **tag("<t>", "</t>", ANY)}, TRIGGERED]},
        [f"<t>a</t>b{X}"], ["b"],
    ),
    ({"type": "json_schema", "json_schema": {"type": "integer", "minimum": 1, "maximum": 3}}, ["2"], ["7", ""]),
]  # fmt: skip


@pytest.mark.parametrize(("form", "allowed", "refused"), CASES)
def test_the_answers_that_a_format_allows(form: dict[str, Any], allowed: list[str], refused: list[str]) -> None:
    grammar = compile_grammar(Constraint.tags(form, PARAM), vocabulary(DEMO))
    assert [text for text in allowed if not accepts(grammar, text)] == []
    assert [text for text in refused if accepts(grammar, text)] == []


@pytest.mark.parametrize("form", [form for form, _, _ in CASES])
def test_random_answers_go_on(form: dict[str, Any]) -> None:
    eos = vocabulary(DEMO).eos[0]
    grammar = compile_grammar(Constraint.tags(form, PARAM), vocabulary(DEMO))
    liked = {token for text in (X, Y, "<t></t>") for token in tokenizer(DEMO).encode(text).ids}
    for seed in range(4):
        ids = walk(grammar, eos, random.Random(seed), liked, 80)
        if ids[-1] == eos:
            text = text_of(tokenizer(DEMO), ids, eos)
            assert accepts(grammar, text)


def test_the_older_form() -> None:
    structures = [{"begin": "<f=x>", "schema": SCHEMA, "end": "</f>"}]
    form = older_format({"type": "structural_tag", "structures": structures, "triggers": ["<f="]})
    grammar = compile_grammar(Constraint.tags(form, PARAM), vocabulary(DEMO))
    assert accepts(grammar, f"a{X}b")


def test_marks_are_tokens() -> None:
    made = chatting.tokenizer()
    vocab = TokenVocabulary(made.to_str(), 512, (made.token_to_id("<|im_end|>"),))
    tags = [tag('<tool_call>\n{"name": "f", "arguments": ', "}\n</tool_call>"), tag("<think>", "</think>", ANY)]
    form = {"type": "triggered_tags", "triggers": ["<tool_call>", "<think>"], "tags": tags}
    constraint = Constraint.tags(form, PARAM)
    grammar = compile_grammar(constraint, vocab)
    text = f'a<think>b</think>c<tool_call>\n{{"name": "f", "arguments": {JSON}}}\n</tool_call>d'
    assert accepts(grammar, text, made)
    spelled = [made.token_to_id(letter) for letter in "<think>"]
    assert grammar.open().allowed((), tuple(spelled)) < len(spelled)
    led = Constraint("tags", constraint.source, PARAM, preamble=Preamble("<think>", "</think>", "\n\n", in_prompt=True))
    assert accepts(compile_grammar(led, vocab), "x</think>\n\nd", made)


@pytest.mark.parametrize(
    ("form", "param"),
    [
        ({"type": "qwen_xml_parameter", "json_schema": {}}, PARAM),
        ({}, PARAM),
        ([], PARAM),
        ({"type": "tag", "begin": "a", "content": ANY}, f"{PARAM}.end"),
        ({"type": "sequence", "elements": [ANY, {"type": "regex"}]}, f"{PARAM}.elements.1.pattern"),
        ({"type": "sequence", "elements": []}, f"{PARAM}.elements"),
        ({**TRIGGERED, "triggers": ["<g"]}, f"{PARAM}.triggers"),
        ({**TRIGGERED, "triggers": [""]}, f"{PARAM}.triggers"),
        ({**TRIGGERED, "tags": [ANY]}, f"{PARAM}.tags"),
        ({"type": "json_schema", "json_schema": {"type": "strin"}}, PARAM),
        ({"type": "regex", "pattern": "("}, PARAM),
        ({"type": "regex", "pattern": "a\\"}, PARAM),
        ({"type": "any_text", "excluded_str": ["a" * 5000]}, PARAM),
        ({"type": "grammar", "grammar": "start: x"}, PARAM),
    ],
)
def test_a_format_that_is_not_served_is_refused_by_its_field(form: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        compile_grammar(Constraint.tags(form, PARAM), vocabulary(DEMO))
    assert caught.value.param == param


def test_ignored_keywords_are_named() -> None:
    form = {"type": "json_schema", "json_schema": {"type": "array", "uniqueItems": True}}
    assert Constraint.tags(form, PARAM).ignored == (f"{PARAM}.json_schema.uniqueItems",)
    nested: Any = ANY
    for _ in range(20):
        nested = {"type": "sequence", "elements": [nested]}
    with pytest.raises(InvalidRequest, match="in 16 levels"):
        Constraint.tags(nested, PARAM)
