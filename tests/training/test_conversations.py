"""Files of conversations as examples: targets, refused lines, cut lines, held-out lines."""

import json
from pathlib import Path

import pytest

from service.errors import DataError
from service.text import TextCodec
from training.chat_codec import ChatCodec
from training.conversations import Example, Limits, read_corpus
from training.demo.experiments import DemoCodec

DEMO = Path(__file__).parents[2] / "service" / "demo"
LIMITS = Limits(block=4, max_length=64, window=64)


class LetterCodec:
    """A character is a token; 0 ends an answer. A chat is `role:content` with `0;` behind an answer."""

    def encode(self, text):
        return [ord(letter) for letter in text]

    def chat_pieces(self, messages, *, answer=True):
        pieces = []
        for number, message in enumerate(messages):
            after = [0, ord(";")] if message["role"] == "assistant" else []
            pieces += [(self.encode(message["role"][0] + ":"), None), (self.encode(message["content"]), number)]
            pieces.append((after, None))
        return [*pieces, ([ord("a"), ord(":")] if answer else [], None)]


def read(tmp_path, *lines, limits=LIMITS, heldout=0.0, codec=None):
    file = tmp_path / "data.jsonl"
    file.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines) + "\n")
    return read_corpus(file, codec or LetterCodec(), [0], limits, heldout)


def written(example: Example):
    """(what is read, what is taught), `.` being the end token."""
    text = "".join(chr(token) if token else "." for token in example.tokens)
    return text[: example.start], text[example.start :]


def say(role, content):
    return {"role": role, "content": content}


def test_an_assistants_messages_are_taught_with_their_end_and_nothing_else_is(tmp_path):
    talk = [say("system", "be"), say("user", "hi"), say("assistant", "ho"), say("user", "?"), say("assistant", "!")]
    corpus = read(tmp_path, {"messages": talk})
    assert [written(example) for example in corpus.train] == [("s:beu:hia:", "ho."), ("s:beu:hia:ho.;u:?a:", "!.")]


def test_a_completion_is_taught_and_all_of_a_text(tmp_path):
    corpus = read(tmp_path, {"prompt": "1+1=", "completion": "2"}, "", {"text": "abc"})
    assert [written(example) for example in corpus.train] == [("1+1=", "2."), ("", "abc.")]
    assert corpus.lines == 2


def test_the_demos_template_gives_what_the_service_would_prompt_with(tmp_path):
    codec, messages = TextCodec.load(DEMO), [say("user", "Tom has 5 apples."), say("assistant", "The answer is 5.")]
    [example] = read(tmp_path, {"messages": messages}, codec=ChatCodec(codec)).train
    assert example.tokens[: example.start] == codec.encode_chat(messages[:1])
    assert codec.decode(example.tokens[example.start :]) == "The answer is 5."
    assert read(tmp_path, {"messages": messages}, codec=DemoCodec(DEMO)).train == [example]


def test_long_answers_are_windows_that_end_with_blocks(tmp_path):
    corpus = read(tmp_path, {"prompt": "abcde", "completion": "x" * 20}, limits=Limits(4, 64, window=8))
    assert [(example.start, example.end) for example in corpus.train] == [(5, 12), (12, 20), (20, 26)]


def test_a_long_answer_is_cut_at_a_block_and_counted(tmp_path):
    limits = Limits(4, max_length=18, window=64)
    corpus = read(tmp_path, {"prompt": "abc", "completion": "x" * 30}, {"text": "short"}, limits=limits)
    assert [(example.start, example.end) for example in corpus.train] == [(3, 16), (0, 6)]
    assert corpus.cut == 1
    with pytest.raises(DataError, match="no answer that begins within 18 tokens"):
        read(tmp_path, {"prompt": "a" * 40, "completion": "x"}, limits=limits)


def test_a_share_of_the_lines_is_held_out_whatever_their_order(tmp_path):
    lines = [{"text": f"line {number}"} for number in range(40)]
    corpus, other = read(tmp_path, *lines, heldout=0.1), read(tmp_path, *lines[::-1], heldout=0.1)
    assert (len(corpus.train), len(corpus.heldout)) == (36, 4)
    assert {written(example) for example in other.heldout} == {written(example) for example in corpus.heldout}
    twice = read(tmp_path, *lines, *lines, heldout=0.1)
    assert not {written(e) for e in twice.heldout} & {written(e) for e in twice.train}


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", "not JSON"),
        ([1], "a JSON object is expected, this is a list"),
        ({"input": "x"}, r"'messages', 'prompt' and 'completion', or 'text' is expected, the keys are input"),
        ({"text": 3}, "'text' is a number, text is expected"),
        ({"prompt": "x"}, "'completion' is not there, text is expected"),
        ({"messages": []}, "'messages' is an empty list, at least one message is expected"),
        ({"messages": "hi"}, "'messages' is text, a list of messages is expected"),
        ({"messages": ["hi"]}, "message 1 is text, an object with role and content is expected"),
        ({"messages": [say("user", "a"), say("assistant", None)]}, "message 2: 'content' is not there, text is"),
        ({"messages": [say("user", "a")]}, "no message has the role 'assistant'"),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, problem):
    with pytest.raises(DataError, match=rf"data\.jsonl, line 2: .*{problem}"):
        read(tmp_path, {"text": "good"}, line)


def test_a_chat_for_a_checkpoint_without_a_template_names_the_line(tmp_path):
    codec = ChatCodec.load(Path(__file__).parents[1] / "golden" / "sdar-mrp-random-a")
    with pytest.raises(DataError, match="line 1: this checkpoint has no chat template"):
        read(tmp_path, {"messages": [say("user", "a"), say("assistant", "b")]}, codec=codec)


def test_no_file_and_no_lines_are_errors(tmp_path):
    with pytest.raises(DataError, match="cannot be read"):
        read_corpus(tmp_path / "none", LetterCodec(), [0], LIMITS, 0.0)
    with pytest.raises(DataError, match="has no lines"):
        read(tmp_path, "", "")
