"""The tokens of a chat that come from an assistant, which are the targets of training."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.errors import InvalidRequest
from service.text import TextCodec
from tests.text.templates import CONTROL, of
from tests.text.test_chat import ORDINARY, Messages, any_of, codec_of, talks
from training.chat_codec import ChatCodec

#: those that put a content into their text as it is
PLAIN = ("chatml", "brackets", "composed", "demo")


def say(**contents: str) -> Messages:
    """Messages by role; a number behind the role tells two of one role apart."""
    return [{"role": role.rstrip("0123456789"), "content": content} for role, content in contents.items()]


def answers(template: str, messages: Messages) -> list[tuple[str, int]]:
    """What is told to be an assistant's, as text, and the message it is of."""
    whole, codec = codec_of("bytes", template)
    pieces = ChatCodec(codec).chat_pieces(messages, answer=False)
    rendered: Any = whole.apply_chat_template(messages, tokenize=False)
    assert whole.decode([token for ids, _ in pieces for token in ids]) == rendered
    return [(whole.decode(ids), number) for ids, number in pieces if number is not None]


@pytest.mark.parametrize("template", PLAIN)
@settings(max_examples=40)
@given(talks(any_of([*ORDINARY, *CONTROL])))
def test_a_content_that_is_put_in_as_it_is(template: str, messages: Messages) -> None:
    contents = [(m["content"], number) for number, m in enumerate(messages) if m["role"] == "assistant"]
    assert answers(template, messages) == contents


@pytest.mark.parametrize("template", ["qwen3", "trim"])
@settings(max_examples=40)
@given(talks(any_of(ORDINARY)))
def test_contents_are_found_in_templates_that_change_them(template: str, messages: Messages) -> None:
    assert all(messages[number]["role"] == "assistant" for _, number in answers(template, messages))


def test_thinking_belongs_to_the_answer_and_that_of_earlier_turns_is_left_out() -> None:
    thought = "<think>\nFive,\nthen six.\n</think>\n\n"
    messages = say(system="s", user="6?", assistant=thought + "It is six.", user2="Sure?", assistant2=thought + "Yes")
    assert answers("qwen3", messages) == [("It is six.", 2), (thought + "Yes", 4)]


def test_trimmed_contents() -> None:
    messages = say(user=" a ", assistant="\n the user, I assume \n", user2="b", assistant2=" ")
    assert answers("trim", messages) == [("the user, I assume", 1)]


def test_an_answer_begins_with_a_token_of_its_own() -> None:
    """In the whole text its first new line would be merged with that of the template."""
    messages = say(user="a", assistant="\nb")
    _, codec = codec_of("bytes", "chatml")
    before, (ids, number), _ = ChatCodec(codec).chat_pieces(messages, answer=False)
    assert before == (codec.encode_chat(messages[:1]), None)
    assert (ids, number) == (codec.encode("\nb"), 1)
    assert codec.encode_chat(messages)[: len(before[0])] != before[0]


@pytest.mark.parametrize("what", ["m.content | length", "m.content | truncate(5, true, leeway=0)"])
def test_contents_that_cannot_be_found_are_refused(what: str) -> None:
    template = "{% for m in messages %}<|im_start|>{{ m.role }} {{ m.content }} {{ " + what + " }}{% endfor %}"
    codec = ChatCodec(TextCodec(of("bytes", template)))
    with pytest.raises(InvalidRequest, match="changes assistants' contents") as caught:
        codec.chat_pieces(say(user="a b c", assistant="d, e, f"))
    assert caught.value.param == "messages"


@given(st.text(max_size=8))
def test_any_letters_may_stand_beside_the_marks(text: str) -> None:
    messages = say(user=text, assistant=f"\U000f0000{text}\U000f0001", user2="\U000f0002")
    assert [number for _, number in answers("trim", messages)] == [1]
