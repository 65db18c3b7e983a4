"""Tools, calls and thinking in chat templates: as in transformers, except for control tokens and marks in texts."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.text import TextCodec
from service.text.tools import Tool, assistant_message, tool_message
from tests.text.templates import ADDED, CONTROL, JOINED, TEMPLATES, of
from tests.text.test_chat import codec_of, control_of, expected

#: another way to write calls
OTHER = (
    "{{ tools | tojson if tools }}{% for m in messages %}{{ m.role }}: {{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.name }}<arg_key>{% endfor %}{% endfor %}"
)
REFUSING = "{% if messages[-1]['role'] == 'tool' %}{{ raise_exception('none of these') }}{% endif %}" + JOINED


def texts(parts: list[str]) -> st.SearchStrategy[str]:
    return st.lists(st.sampled_from(parts), max_size=4).map("".join)


def values(text: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    scalars = st.none() | st.booleans() | st.integers() | text
    return st.recursive(scalars, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(text, inner, max_size=2))


def talks(text: st.SearchStrategy[str]) -> st.SearchStrategy[tuple[list[Any], list[Any]]]:
    """Messages with calls and their results, and tools."""
    arguments = st.dictionaries(text, values(text), max_size=2)

    def talk(parts: list[str], calls: list[Any], thought: str, more: bool) -> list[Any]:
        made = [(f"call{number:05}", "add", arguments) for number, arguments in enumerate(calls)]
        messages: list[Any] = [{"role": "system", "content": parts[0]}] if parts[0] else []
        messages += [{"role": "user", "content": parts[1]}, assistant_message(parts[2], made, thought)]
        messages += [tool_message(call, name, parts[3]) for call, name, _ in made]
        return [*messages, {"role": "user", "content": parts[4]}] if more else messages

    lists = st.lists(text, min_size=5, max_size=5)
    messages = st.builds(talk, lists, st.lists(arguments, max_size=2), text, st.booleans())
    tool = st.builds(lambda words, schema: Tool("add", words, schema).definition, text, st.none() | arguments)
    return st.tuples(messages, st.lists(tool, max_size=2))


ORDINARY = ["\n", " ", "x", "é", '"', "\\", "{", "\ue000", "<thin", "call>", "<|im_", "|>", "user"]


@pytest.mark.parametrize("template", ["qwen3", JOINED])
@settings(max_examples=25)
@given(talk=talks(texts(ORDINARY)), think=st.sampled_from([None, True, False]))
def test_ids_are_those_of_transformers(template: str, talk: tuple[list[Any], list[Any]], think: bool | None) -> None:
    whole, codec = codec_of("bytes", template)
    options = {} if think is None else {"enable_thinking": think}
    assert codec.encode_chat(*talk, think=think) == expected(whole, *talk, **options)


def harmless(value: Any, tokens: Sequence[str] = CONTROL) -> Any:
    """The same messages and tools, with control tokens taken out of all texts."""
    if isinstance(value, str):
        for token in tokens:
            value = value.replace(token, "y")
        return value
    if isinstance(value, dict):
        return {harmless(name, tokens): harmless(item, tokens) for name, item in value.items()}
    return [harmless(item, tokens) for item in value] if isinstance(value, list | tuple) else value


@pytest.mark.parametrize("template", ["qwen3", "chatml", JOINED])
@settings(max_examples=25)
@given(talk=talks(texts([*ORDINARY[:7], *ADDED])))
def test_no_text_of_a_stranger_makes_a_mark(template: str, talk: tuple[list[Any], list[Any]]) -> None:
    """Strangers write results of tools, users' messages, definitions of tools, and arguments that a model repeats."""
    whole, codec = codec_of("bytes", template)
    marks = set(whole.convert_tokens_to_ids(list(ADDED)))
    messages, tools = talk
    cleaned = [
        {**harmless(message, ADDED), **{name: message[name] for name in OWN if name in message}}
        if message["role"] in ("assistant", "system")
        else harmless(message, ADDED)
        for message in messages
    ]
    made_marks, own_marks = [
        [token for token in codec.encode_chat(*talk_and_tools) if token in marks]
        for talk_and_tools in ((messages, tools), (cleaned, harmless(tools, ADDED)))
    ]
    assert made_marks == own_marks


#: the texts in which a model's and a program's own marks stay
OWN = ("content", "reasoning_content", "role")


@pytest.mark.parametrize("template", ["qwen3", "chatml", JOINED])
@settings(max_examples=25)
@given(talk=talks(texts([*ORDINARY, "<|im_end|>", "<|end|>", "<|user|>", "<|MASK|>"])))
def test_no_text_makes_a_control_token(template: str, talk: tuple[list[Any], list[Any]]) -> None:
    whole, codec = codec_of("bytes", template)
    harmless_ids = codec.encode_chat(*harmless(talk))
    assert control_of(whole, codec.encode_chat(*talk)) == control_of(whole, harmless_ids)


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        *((TEMPLATES[name], "knows no tools") for name in ("chatml", "demo", "trim")),
        (OTHER, "in none of the known formats: qwen3"),
        (REFUSING, "cannot show calls of tools: none of these"),
        ("{{ 1 / 0 }}", "cannot be used"),
    ],
)
def test_why_there_are_no_tools(template: str, problem: str) -> None:
    codec = TextCodec(of("bytes", template))
    assert codec.template.tool_format is None
    assert problem in codec.template.tools_problem


def test_a_template_tells_its_tool_format_and_reasoning() -> None:
    _, codec = codec_of("bytes", "qwen3")
    assert codec.template.tool_format
    assert (codec.template.tool_format.name, codec.template.tools_problem) == ("qwen3", "")
    assert codec.template.thinking
    assert (codec.template.thinking.opened_by_prompt, codec.template.thinking.switch) == (False, True)
    codec = TextCodec(of("bytes", TEMPLATES["chatml"].replace("assistant\n", "assistant\n<think>\n{# </think> #}")))
    assert codec.template.thinking
    assert (codec.template.thinking.opened_by_prompt, codec.template.thinking.switch) == (True, False)
    assert TextCodec(of("bytes", "chatml")).template.thinking is None
