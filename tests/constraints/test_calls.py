"""Grammars of calls: what they allow is read back, arguments fit their schemas, marks are tokens or spelled."""

import json
import random
from functools import cache
from typing import Any

import jsonschema
import pytest
from msgspec.structs import replace
from tokenizers import Tokenizer

from service.constraints.constraint import Constraint, Preamble, ToolCallForm
from service.constraints.grammars import compile_grammar
from service.constraints.vocabulary import TokenVocabulary
from service.errors import InvalidRequest
from service.text.tools import TOOL_FORMATS, AnswerFormat, Tool, parse_output
from tests.constraints.checkpoints import accepts, byte_pairs
from tests.constraints.schemas import random_schema
from tests.constraints.walks import text_of, walk
from tests.gateway import chatting

FORMAT = TOOL_FORMATS["qwen3"]
THINK = Preamble("<think>", "</think>", "\n\n")
BEGUN = replace(THINK, in_prompt=True)
ADD = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
CALL = FORMAT.written(("add", '{"a": 12}'))
BOTH = FORMAT.written(("add", '{"a": 12}'), ("none", "{}"))


@cache
def tokenizer(marked: bool) -> Tokenizer:
    return chatting.tokenizer() if marked else byte_pairs()


@cache
def vocabulary(marked: bool) -> TokenVocabulary:
    """`marked`: whether `<tool_call>` and the like are tokens."""
    return TokenVocabulary(tokenizer(marked).to_str(), 512, [510])


def calls(
    *tools: Tool, required: bool = False, parallel: bool = True, preamble: Preamble | None = None, content: Any = None
) -> Constraint:
    forms = [
        ToolCallForm(tool.name, FORMAT.head(tool.name), tool.schema, FORMAT.tail, tool.param, tool.strict)
        for tool in tools
    ]
    between = FORMAT.between if parallel else None
    made = Constraint.calls(forms, opening=FORMAT.opening, between=between, required=required, content=content)
    return replace(made, preamble=preamble)


TOOLS = (Tool("add", None, ADD), Tool("none"))
JSON = Constraint.json({"const": {"x": 1}}, "response_format")


THOUGHT = f"<think>a {{</think>\n\n{CALL}"
BAD = [
    "<tool_call>", "<tool_call>\nhi", CALL.replace("12", '"12"'), CALL.replace("add", "x"), CALL + CALL,
    CALL + "\nhi",
]  # fmt: skip


@pytest.mark.parametrize("marked", [True, False])
@pytest.mark.parametrize(
    ("constraint", "allowed", "refused"),
    [
        (calls(*TOOLS), ["", "hi <tool_call", CALL, "hi\n" + CALL, BOTH], BAD),
        (calls(*TOOLS, parallel=False), ["", "hi <tool_call", CALL, "hi\n" + CALL], [*BAD, BOTH]),
        (calls(*TOOLS, required=True), [CALL, BOTH], [*BAD, "", "hi\n" + CALL, THOUGHT]),
        (
            calls(*TOOLS, required=True, preamble=THINK),
            [CALL, BOTH, THOUGHT],
            [*BAD, "hi" + CALL, "<think>a</think>\n\n"],
        ),
        (
            calls(*TOOLS, preamble=THINK),
            ["", "hi <tool_call", CALL, "hi\n" + CALL, BOTH, THOUGHT, "<think></think>\n\nhi"],
            [*BAD, "<think>a", "<think>a</think>", f"<think>{CALL}", " <think>a"],
        ),
        (calls(*TOOLS, preamble=BEGUN), [THOUGHT[8:], "b</think>\n\n"], ["", "hi"]),
        (calls(*TOOLS, content=JSON), ['{"x": 1}', CALL, BOTH], [*BAD, "", "hi", '{"x": 1}' + CALL]),
        (replace(JSON, preamble=THINK), ['{"x": 1}', '<think></think>\n\n{"x": 1}'], ["", THOUGHT, CALL]),
        (
            replace(Constraint.grammar('start: "h" x\nx: "i"'), preamble=THINK),
            ["hi", "<think>b</think>\n\nhi"],
            ["h", ""],
        ),
    ],
)
def test_the_answers_that_a_grammar_of_calls_allows(
    constraint: Constraint, allowed: list[str], refused: list[str], marked: bool
) -> None:
    grammar = compile_grammar(constraint, vocabulary(marked))
    assert [text for text in allowed if not accepts(grammar, text, tokenizer(marked))] == []
    assert [text for text in refused if accepts(grammar, text, tokenizer(marked))] == []


def test_marks_are_tokens_where_the_vocabulary_has_them() -> None:
    grammar = compile_grammar(calls(*TOOLS, required=True), vocabulary(True))
    mark = tokenizer(True).token_to_id("<tool_call>")
    assert grammar.open().forced(())[0] == mark
    spelled = tuple(token for letter in CALL for token in tokenizer(True).encode(letter).ids)
    assert grammar.open().allowed((), spelled) == 0
    auto = compile_grammar(calls(*TOOLS), vocabulary(True)).open()
    assert auto.allowed((), spelled) == len("<tool_call")  # the mark cannot be spelled in free text


@pytest.mark.parametrize(
    ("marked", "rounds"),
    [(True, 12), (False, 12), *(pytest.param(marked, 100, marks=pytest.mark.slow) for marked in (True, False))],
)
def test_schemas_hold_and_answers_are_read_back(marked: bool, rounds: int) -> None:
    """Arguments of 24 schemas, and of 200, fit them. Written again, an answer that is allowed is the same."""
    rng = random.Random(5)
    eos, words = 510, tokenizer(marked)
    liked = {eos, *(words.encode(text).ids[0] for text in ("<tool_call>", "</think>", '"', "}", "a", "1"))}
    ended = made = thought = 0
    for number in range(rounds):
        schemas = {}
        while len(schemas) < 2:  # objects, as arguments are
            inner = random_schema(rng, 2)
            schemas[f"tool_{len(schemas)}"] = {
                "type": "object", "properties": {"p": inner}, "required": ["p"], "additionalProperties": False,
            }  # fmt: skip
        preamble = (None, THINK, BEGUN)[number % 3]
        required, parallel = number % 2 == 0, number % 4 < 2
        constraint = calls(
            *(Tool(name, None, schema) for name, schema in schemas.items()),
            required=required, parallel=parallel, preamble=preamble,
        )  # fmt: skip
        grammar = compile_grammar(constraint, vocabulary(marked))
        reading = AnswerFormat("qwen3", "no" if preamble is None else "begun" if preamble.in_prompt else "may")
        for _ in range(2):
            ids = walk(grammar, eos, rng, liked, 250)
            text = text_of(words, ids, eos)
            if ids[-1] != eos or "\ufffd" in text:
                continue
            ended += 1
            read = parse_output(reading, text)
            for call in read.calls:
                jsonschema.validate(json.loads(call.arguments), schemas[call.name])
            assert read.called == bool(read.calls)
            assert not required or (read.calls and not read.content)
            assert parallel or len(read.calls) <= 1
            made += len(read.calls)
            thought += bool(read.reasoning)
            written = FORMAT.written(*((call.name, call.arguments) for call in read.calls))
            assert text.endswith(written)
            assert "<tool_call>" not in read.content
    assert ended > rounds
    assert made > rounds / 3
    assert thought > rounds / 10 or not marked  # spelled marks are rare


WRONG = {"type": "object", "properties": {"a": {"items": {"minItems": "1"}}}}


def test_a_wrong_schema_of_a_strict_tool_is_refused() -> None:
    with pytest.raises(InvalidRequest) as caught:
        compile_grammar(calls(*TOOLS, Tool("third", None, WRONG, strict=True)), vocabulary(True))
    assert caught.value.param == "tools"
    assert "the parameters of 'third': at /properties/a/items: " in caught.value.message
    narrow = {"properties": {"a": {"exclusiveMinimum": 0, "maximum": 0.5}}}
    with pytest.raises(InvalidRequest, match=r"tools.7 cannot be used: properties.a.exclusiveMinimum is not supported"):
        calls(Tool("x", None, narrow, strict=True, param="tools.7"))
    with pytest.raises(InvalidRequest, match="characters, allowed are"):
        calls(Tool("x", None, {"description": "a" * 300_000}))


@pytest.mark.parametrize(
    ("schema", "allowed", "refused"),
    [
        (WRONG, '{"a": [1]}', '{"b": 1}'),
        ({"type": "object", "properties": {"a": {"pattern": "("}, "b": {"type": "null"}}}, '{"b": null}', '{"b": 1}'),
        ({"properties": {"a": False}, "required": ["a"]}, "{}", "1"),
        ({"not": {}}, "{}", "1"),
        ({"properties": {"a": {"pattern": "a{900}", "allOf": [{"pattern": "b{9000}" * 900}]}}}, "{}", '{"b": 1}'),
    ],
)
def test_a_wrong_schema_never_refuses_the_other_tools(schema: Any, allowed: str, refused: str) -> None:
    tools = [Tool(f"tool_{number}", None, ADD) for number in range(40)]
    grammar = compile_grammar(calls(*tools, Tool("wrong", None, schema), required=True), vocabulary(True))
    assert accepts(grammar, FORMAT.written(("wrong", allowed)), tokenizer(True))
    assert not accepts(grammar, FORMAT.written(("wrong", refused)), tokenizer(True))
    assert accepts(grammar, FORMAT.written(("tool_7", '{"a": 12}')), tokenizer(True))
    assert not accepts(grammar, FORMAT.written(("tool_7", '{"a": "12"}')), tokenizer(True))


_ABC = {"type": "string", "pattern": "^[a-c]$"}
_SHORT = {"type": "string", "pattern": "^abc$", "maxLength": 2}
#: the schema of one property -> the keyword that is ignored, and the allowed and refused values of the property
_FAULTS: list[tuple[Any, str, str, str]] = [
    ({"type": "strin"}, "type", "1", ""),
    ({"type": ["boolean", "strin"]}, "type", "true", "1"),
    ({"type": "string", "enum": "a"}, "enum", '"b"', "1"),
    ({"type": "string", "pattern": "^{[a-c]}$", "maxLength": 3}, "", '"{b}"', '"{d}"'),
    ({"type": "string", "pattern": "(?=a)b", "maxLength": 1}, "pattern", '"?"', '"??"'),
    ({"type": "string", "pattern": 3, "maxLength": 1}, "pattern", '"?"', '"??"'),
    (_SHORT, "pattern", '"ab"', '"abc"'),
    ({"type": "object", "properties": {"x": False}, "required": ["x"]}, "required", "{}", '{"x": 1}'),
    ({"anyOf": [{"type": "null"}, {"type": "strin"}, _SHORT]}, "anyOf", "null", "1"),
    ({"anyOf": [{"type": "strin"}]}, "type", "1", ""),
    ({"allOf": [{"type": "boolean"}, {"minItems": "a"}]}, "minItems", "true", "1"),
    ({"$ref": "#/$defs/bad"}, "minLength", '"b"', "1"),
    ({"$ref": "#/$defs/none", "type": "null"}, "$ref", "null", "1"),
    ({"type": "array", "items": _SHORT, "minItems": 1, "maxItems": 1}, "pattern", '["ab"]', '["abc"]'),
    ({"type": "array", "prefixItems": [{"type": "null"}, {"type": 1}]}, "type", "[null, 3]", "[1, 3]"),
    ({"type": "object", "properties": {"p": {"minimum": "a"}}}, "minimum", '{"p": 3}', '{"q": 3}'),
    ({"type": "object", "required": ["p", 3]}, "required", '{"p": 1}', "{}"),
    ({"type": "object", "additionalProperties": {"type": "x"}}, "type", '{"p": 1}', "1"),
    ({"type": "string", "format": 3}, "format", '"a"', "1"),
    ({"type": "number", "minimum": 3, "maximum": 2}, "minimum", "1", "3"),
    ({"type": "string", "maxLength": 1e30}, "maxLength", '"a"', "1"),
    (3, "properties", "1", ""),
]  # fmt: skip


@pytest.mark.parametrize(("fault", "keyword", "allowed", "refused"), _FAULTS)
def test_a_fault_takes_down_itself_alone_and_is_named(fault: Any, keyword: str, allowed: str, refused: str) -> None:
    properties = {"a": fault, "c": _ABC, "d": {"$ref": "#/$defs/good"}}
    definitions = {"bad": {"type": "string", "minLength": "a"}, "good": {"type": "null"}}
    schema = {"type": "object", "properties": properties, "required": ["a", "c"], "$defs": definitions}
    if keyword != "minLength":
        del definitions["bad"]
    param = "tools.1.function.parameters"
    tools = [Tool("add", None, ADD), Tool("wrong", None, schema, param=param)]
    grammar = compile_grammar(calls(*tools, required=True), vocabulary(True))
    assert grammar.constraint.ignored == ((f"tools.function.parameters.{keyword}",) if keyword else ())

    def is_allowed(arguments: str, name: str = "wrong") -> bool:
        return accepts(grammar, FORMAT.written((name, arguments)), tokenizer(True))

    assert is_allowed(f'{{"a": {allowed}, "c": "b", "d": null}}')
    assert not is_allowed(f'{{"a": {allowed}, "c": "d"}}')
    assert not is_allowed(f'{{"a": {allowed}, "c": "b", "d": 1}}')
    assert is_allowed('{"a": 12}', "add")
    assert not is_allowed('{"a": "b"}', "add")
    assert not refused or not is_allowed(f'{{"a": {refused}, "c": "b"}}')


def test_errors_are_told_as_if_each_part_stood_alone() -> None:
    wrong = Constraint.json({"items": {"minItems": "1"}}, "response_format")
    grammar = Constraint.grammar("start: b")
    for constraint, param, message in (
        (calls(*TOOLS, content=wrong, preamble=THINK), "response_format", "at /items: Expected positive integer"),
        (replace(wrong, preamble=THINK), "response_format", "at /items: Expected positive integer"),
        (replace(grammar, preamble=THINK), "grammar", 'unknown name: "b"'),
        (
            calls(Tool("x", None, WRONG, strict=True), preamble=THINK),
            "tools",
            "of 'x': at /properties/a/items: Expected",
        ),
    ):
        with pytest.raises(InvalidRequest) as caught:
            compile_grammar(constraint, vocabulary(True))
        assert caught.value.param == param
        assert message in caught.value.message
        assert "call_0" not in caught.value.message


def test_many_tools_compile() -> None:
    rng = random.Random(3)
    tools = [
        Tool(f"tool_{number}", None, {"type": "object", "properties": {"p": random_schema(rng, 2)}, "required": ["p"]})
        for number in range(128)
    ]
    grammar = compile_grammar(calls(*tools, required=True), vocabulary(True))
    assert accepts(grammar, FORMAT.written(("tool_7", "{}")), tokenizer(True)) is False
