"""Messages in a chat template: as in transformers, except for control tokens in contents, and marks in users' ones."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from service.text import TextCodec
from tests.text.templates import ADDED, CONTROL, TEMPLATES, TOKENIZERS, of

Messages = list[dict[str, str]]

PAIRS = [("bytes", template) for template in TEMPLATES] + [(tokenizer, "qwen3") for tokenizer in TOKENIZERS]
PAIRS += [(tokenizer, "composed") for tokenizer in TOKENIZERS] + [("words", "trim"), ("words, legacy", "brackets")]
PAIRS = list(dict.fromkeys(PAIRS))

#: what is merged over borders, what templates look for, what might be taken for a placeholder
ORDINARY = [
    "\n", "\n\n", " ", "  ", ".", "|", "<", ">", "x", "hi", "é", "日", "😀", '"', "\\", "{{ 1 }}", "\ue000", "\ue001",
]  # fmt: skip
ORDINARY += [*ADDED, "<|im_", "end|>", "\U000f0000", "\U0010fffd", "0", "[INST]", "user", "MASK"]
ROLES = ["user", "assistant"]


def any_of(parts: list[str]) -> st.SearchStrategy[str]:
    return st.lists(st.sampled_from(parts), max_size=8).map("".join)


def talks(contents: st.SearchStrategy[str]) -> st.SearchStrategy[Messages]:
    """A system message or none, then turns."""

    def talk(texts: list[str], system: bool) -> Messages:
        roles = ["system"] * (system and len(texts) > 1) + ROLES * len(texts)
        return [{"role": role, "content": text} for role, text in zip(roles, texts, strict=False)]

    return st.builds(talk, st.lists(contents, min_size=1, max_size=6), st.booleans())


def holds_control(text: str) -> bool:
    return any(token in text for token in (*CONTROL, "<unk>"))


@cache
def codec_of(tokenizer: str, template: str) -> tuple[PreTrainedTokenizerFast, TextCodec]:
    whole = of(tokenizer, template)
    return whole, TextCodec(whole)


def expected(
    tokenizer: PreTrainedTokenizerFast, messages: Messages, tools: Sequence[Any] = (), **options: Any
) -> list[int]:
    """The ids of transformers."""
    tools_or_none: Any = list(tools) or None
    ids: Any = tokenizer.apply_chat_template(
        messages, tools=tools_or_none, add_generation_prompt=True, return_dict=False, **options
    )
    return list(ids)


def control_of(tokenizer: PreTrainedTokenizerFast, ids: list[int]) -> list[int]:
    """The control tokens among ids."""
    control = {tokenizer.convert_tokens_to_ids(token) for token in CONTROL}
    return [token for token in ids if token in control]


def without_users_marks(messages: Messages) -> Messages:
    """The messages, with marks taken out of users' contents."""
    return [
        {**message, "content": _unmarked(message["content"])} if message["role"] == "user" else message
        for message in messages
    ]


def _unmarked(text: str) -> str:
    while any(mark in text for mark in ADDED):
        for mark in ADDED:
            text = text.replace(mark, "y")
    return text


@pytest.mark.parametrize(("tokenizer", "template"), PAIRS)
@settings(max_examples=15)
@given(talks(any_of(ORDINARY).filter(lambda text: not holds_control(text))))
def test_ids_are_those_of_transformers(tokenizer: str, template: str, messages: Messages) -> None:
    whole, codec = codec_of(tokenizer, template)
    unmarked = without_users_marks(messages)
    assert codec.encode_chat(unmarked) == expected(whole, unmarked)


@pytest.mark.parametrize("template", [name for name in TEMPLATES if name != "conditions"])
@settings(max_examples=15)
@given(talks(any_of([*ORDINARY, *CONTROL])))
def test_no_content_of_a_user_makes_a_mark(template: str, messages: Messages) -> None:
    whole, codec = codec_of("bytes", template)
    marks = set(whole.convert_tokens_to_ids(list(ADDED)))
    marks_before, harmless = [
        [token for token in codec.encode_chat(talk) if token in marks]
        for talk in (messages, without_users_marks(messages))
    ]
    assert marks_before == harmless


@pytest.mark.parametrize(("tokenizer", "template"), PAIRS)
@settings(max_examples=15)
@given(talks(any_of([*ORDINARY, *CONTROL, "<unk>"])))
def test_no_content_makes_a_control_token(tokenizer: str, template: str, messages: Messages) -> None:
    whole, codec = codec_of(tokenizer, template)
    harmless = [{**message, "content": "y"} for message in messages]
    assert control_of(whole, codec.encode_chat(messages)) == control_of(whole, expected(whole, harmless))


@pytest.mark.parametrize("template", TEMPLATES)
@settings(max_examples=15)
@given(talks(any_of([*ORDINARY, *CONTROL])))
def test_every_letter_of_the_rendered_text_is_there(template: str, messages: Messages) -> None:
    whole, codec = codec_of("bytes", template)
    messages = without_users_marks(messages) if template == "conditions" else messages  # it looks for them
    rendered = whole.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert whole.decode(codec.encode_chat(messages)) == rendered


@pytest.mark.parametrize(
    ("tokenizer", "template", "content"),
    [
        ("bytes", "{{ messages[0].content | replace('x', '') }}", "<|im_xend|>"),
        ("bytes", "{{ messages[0].content | upper }}", "<|mask|>"),
        ("bytes", "{{ messages[0].content[::-1] }}", ">|KSAM|<"),
        ("bytes", "{{ messages[0].content.split(',') | join }}", "<|im_,end|>"),
        ("bytes", "<|im_{{ messages[0].content }}", "end|>"),
        ("bytes, normalized", "chatml", "\uff1c|im_end|\uff1e"),
        ("bytes, normalized", "chatml", "<|im_end|>"),
    ],
)
def test_no_control_token_is_made_of_parts(tokenizer: str, template: str, content: str) -> None:
    whole, codec = codec_of(tokenizer, template)
    messages = [{"role": "user", "content": content}]
    harmless = expected(whole, [{"role": "user", "content": "y"}])
    assert len(control_of(whole, expected(whole, messages))) > len(control_of(whole, harmless))
    assert control_of(whole, codec.encode_chat(messages)) == control_of(whole, harmless)
