"""Parses answers with thinking and calls: whole, in pieces, and cut."""

import json
from collections.abc import Callable
from itertools import count, pairwise
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.errors import InvalidRequest
from service.text.tools import (
    TOOL_FORMATS,
    AnswerFormat,
    ContentDelta,
    OutputParser,
    ParsedOutput,
    Tool,
    ToolCallDelta,
    ToolCallStart,
    ToolUse,
    parse_output,
)
from service.text.tools.output_parser import collect

QWEN3 = TOOL_FORMATS["qwen3"]

words = st.lists(st.sampled_from([*'ab <>{}[]"\\\n', "<tool_", "call>", "think>", "</", "é", "😀"]), max_size=12).map(
    "".join
)
plain = words.filter(lambda text: not any(mark in text for mark in ("<tool_call>", "think>")))
json_values = st.recursive(
    st.none() | st.integers() | words, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner)
)
arguments = st.dictionaries(words, json_values, max_size=3).map(lambda value: json.dumps(value, ensure_ascii=False))
calls = st.lists(st.tuples(st.sampled_from(["add", "a.b-c_9"]), arguments), max_size=3)


def numbered() -> Callable[[], str]:
    numbers = count()
    return lambda: f"call_{next(numbers)}"


def in_pieces(reading: AnswerFormat, text: str, cuts: list[int]) -> tuple[ParsedOutput, list[Any]]:
    reader, events = OutputParser(reading, numbered()), []
    bounds = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    for start, end in pairwise(bounds):
        events += reader.push(text[start:end])
    events += reader.finish()
    assert reader.called == collect(events).called
    return collect(events), events


@settings(max_examples=10)
@given(
    content=plain,
    made=calls,
    thought=st.none() | plain,
    opened_by_prompt=st.booleans(),
    cuts=st.lists(st.integers(0, 10**6)),
)
def test_a_written_answer_is_parsed_back(
    content: str, made: list[tuple[str, str]], thought: str | None, opened_by_prompt: bool, cuts: list[int]
) -> None:
    gap = "\n" if content and made else ""
    text = content + gap + QWEN3.written(*made)
    if thought is not None:
        text = f"{'' if opened_by_prompt else '<think>'}\n{thought}\n</think>\n\n{text}"
    reading = AnswerFormat("qwen3", "no" if thought is None else "begun" if opened_by_prompt else "may")
    whole = parse_output(reading, text, numbered())
    assert [(call.name, call.arguments) for call in whole.calls] == made
    assert [call.id for call in whole.calls] == [f"call_{number}" for number in range(len(made))]
    assert whole.called == bool(made)
    assert whole.reasoning == (thought or "").strip("\n") or whole.reasoning == (thought or "").lstrip("\n").rstrip(
        "\n"
    )
    answer = content if thought is None else content.lstrip("\n")
    assert whole.content == (answer.rstrip() if made else answer)
    assert in_pieces(reading, text, cuts)[0] == whole


@given(
    text=st.lists(st.sampled_from(["<think>", "</think>", "<tool_call>", QWEN3.head("f"), "{}", QWEN3.tail, "a", " ", "\n", "{"]))  # noqa: E501
    .map("".join),
    cuts=st.lists(st.integers(0, 10**6)),
    format_=st.sampled_from(["qwen3", None]),
    thinking=st.sampled_from(["no", "may", "begun"]),
)  # fmt: skip
def test_pieces_of_any_text_join_to_the_whole(
    text: str, cuts: list[int], format_: str | None, thinking: Literal["no", "may", "begun"]
) -> None:
    reading = AnswerFormat(format_, thinking)
    whole = parse_output(reading, text, numbered())
    read, events = in_pieces(reading, text, cuts)
    assert read == whole
    assert all(event.text for event in events if hasattr(event, "text"))
    if reading.plain:
        assert whole.content == text


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("<tool_ca", ParsedOutput("<tool_ca")),
        ('<tool_call>\n{"na', ParsedOutput("")),
        ('a <tool_call>\n{"name": "ad', ParsedOutput("a")),
        ("a <tool_call>\nfoo", ParsedOutput("a<tool_call>\nfoo")),
        ("  <think>", ParsedOutput("")),
        ("  <thi", ParsedOutput("  <thi")),
        (" a <think>", ParsedOutput(" a <think>")),
        ("<think>\n\n</think>\n\n", ParsedOutput("")),
        ("<think>a\n", ParsedOutput("", reasoning="a\n")),
    ],
)
def test_answers_that_were_cut(text: str, read: ParsedOutput) -> None:
    assert parse_output(AnswerFormat("qwen3", "may"), text) == read


def test_a_call_that_was_cut_is_none_that_was_made() -> None:
    text = QWEN3.written(("add", '{"a": "}'), ("b", "{}"))[: -len('"}\n</tool_call>\n<tool_call>')]
    read = parse_output(AnswerFormat("qwen3"), text[:40] + text[40:], numbered())
    assert [(call.name, call.arguments) for call in read.calls] == [
        ("add", text[len(QWEN3.opening + QWEN3.head("add")) :])
    ]
    assert not read.called


def test_arguments_come_as_they_are_written() -> None:
    reader = OutputParser(AnswerFormat("qwen3"), numbered())
    events = [event for letter in "x" + QWEN3.written(("add", '{"a": [1]}')) for event in reader.push(letter)]
    assert events[:2] == [ContentDelta("x"), ToolCallStart(0, "call_0", "add")]
    assert "".join(event.text for event in events if isinstance(event, ToolCallDelta)) == '{"a": [1]}'
    assert len(events) > 10


@pytest.mark.parametrize(
    ("thinking", "before", "after"),
    [
        ("no", "x", "y"), ("no", "x", "<tool_call>"), ("no", QWEN3.written(("add", "{}")), "y"), ("may", "", "y"),
        ("may", "", "<think>y"), ("begun", "", "y"), ("begun", "x", "</think>"), ("begun", "x</think>", "y"),
    ],
)  # fmt: skip
def test_white_space_that_is_held_back_is_not_read_again(
    thinking: Literal["no", "may", "begun"], before: str, after: str
) -> None:
    """An answer of nothing else would take the time of its length squared."""
    reader = OutputParser(AnswerFormat("qwen3", thinking), numbered())
    events = reader.push(before)
    for _ in range(100):
        events += reader.push("\n" * 8)
        assert len(reader._text) <= 8
    events += [*reader.push(after), *reader.finish()]
    whole = parse_output(AnswerFormat("qwen3", thinking), before + "\n" * 800 + after, numbered())
    assert collect(events) == whole


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: ToolUse((Tool("a"),), "auto", ("b",)), "'b', which is none of the tools"),
        (lambda: ToolUse((), "required"), "there are no tools"),
        (lambda: ToolUse((Tool("a"),) * 300), "300 tools"),
        (lambda: Tool("a", None, {"type": "string"}, strict=True).schema, "allowed is 'object'"),
    ],
)
def test_wrong_tools_are_refused(wrong: Callable[[], object], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        wrong()
