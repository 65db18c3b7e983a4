"""Any text in any tokenizer, cut anywhere, with any stop texts: pieces add up to the whole up to a stop text."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

import service.demo
from service.text import TextCodec
from service.text.detokenizer import StopAutomaton
from tests.tiny import GOLDEN

LETTERS = "ab é€😀日本語\u0301\u200d👩🏽‍🚀\n�"


def trained() -> TextCodec:
    """Byte-level BPE whose tokens begin and end within characters."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = AddedToken("<|end|>", special=True)
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=alphabet, special_tokens=[special], show_progress=False
    )
    tokenizer.train_from_iterator([LETTERS * 2, LETTERS[::-1], "a b ab ba " * 9, "€😀" * 9, "日語本" * 9], trainer)
    return TextCodec(PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>"))


def words() -> TextCodec:
    return TextCodec.load(GOLDEN / "sdar-mrp-random-a")


def demo() -> TextCodec:
    return TextCodec.load(Path(service.demo.__file__).parent)


CODECS = {"trained": trained(), "words": words(), "demo": demo()}
LAST = {name: codec.vocab_size - 1 for name, codec in CODECS.items()}

texts = st.one_of(st.text(LETTERS, max_size=40), st.text(max_size=40))
cuts = st.lists(st.integers(0, 9), max_size=12)


@pytest.fixture(params=CODECS, scope="module")
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def pushed(codec: TextCodec, ids: list[int], cuts: list[int], stop: list[str]) -> tuple[list[str], list[int]]:
    stream, pieces, answer_ids, start = codec.stream(stop), [], [], 0
    for size in [*cuts, len(ids)]:
        piece, counted = stream.push(ids[start : start + size])
        pieces, answer_ids, start = [*pieces, piece], [*answer_ids, *counted], start + size
    return [*pieces, stream.finish()], answer_ids


@given(st.data(), cuts)
def test_without_stop_texts(name: str, data: st.DataObject, cuts: list[int]) -> None:
    codec = CODECS[name]
    ids = data.draw(st.lists(st.integers(0, LAST[name]), max_size=40) | texts.map(codec.encode))
    pieces, answer_ids = pushed(codec, ids, cuts, [])
    assert "".join(pieces) == codec.decode(ids)
    assert answer_ids == ids


@given(texts, cuts)
def test_text_comes_back_and_characters_stay_whole(text: str, cuts: list[int]) -> None:
    codec = CODECS["trained"]
    pieces, _ = pushed(codec, codec.encode(text), cuts, [])
    assert "".join(pieces) == text
    assert sum(piece.count("\ufffd") for piece in pieces) == text.count("\ufffd")


@given(st.data(), cuts)
def test_stop_texts(name: str, data: st.DataObject, cuts: list[int]) -> None:
    """The answer is the text before the first place where a stop text is complete, however it is cut."""
    codec = CODECS[name]
    ids = data.draw(st.lists(st.integers(0, LAST[name]), max_size=30) | texts.map(codec.encode))
    whole = codec.decode(ids)
    part = st.text(LETTERS, min_size=1, max_size=3)
    if whole:
        part |= st.tuples(st.integers(0, len(whole) - 1), st.integers(1, 6)).map(lambda at: whole[at[0] :][: at[1]])
    stop = data.draw(st.lists(part, min_size=1, max_size=4))
    pieces, answer_ids = pushed(codec, ids, cuts, stop)
    answer = "".join(pieces)
    assert whole.startswith(answer)
    assert ids[: len(answer_ids)] == answer_ids
    assert not any(text in answer for text in stop)
    if any(text in whole for text in stop):
        assert any(whole[len(answer) :].startswith(text) for text in stop)
        assert codec.decode(answer_ids).startswith(answer)
    else:
        assert (answer, answer_ids) == (whole, ids)
    assert pushed(codec, ids, [1] * len(ids), stop)[1] == answer_ids
    assert "".join(pushed(codec, ids, [], stop)[0]) == answer


@given(texts, cuts, st.text(LETTERS, min_size=1, max_size=4))
def test_nothing_that_may_begin_a_stop_text_comes_early(text: str, cuts: list[int], stop: str) -> None:
    codec = CODECS["trained"]
    pieces, _ = pushed(codec, codec.encode(text), cuts, [stop])
    sent = "".join(pieces[:-1])
    assert text.startswith(sent)
    assert len(sent) <= (text.index(stop) if stop in text else len(text))
    held = [size for size in range(1, len(stop)) if text.endswith(stop[:size])]
    if held and stop not in text:
        assert len(sent) <= len(text) - max(held)


class CountedText(str):
    """A text that counts how often one of its letters is looked at."""

    __slots__ = ("looks",)
    looks: int

    def __getitem__(self, index: object) -> str:
        self.looks += 1
        return super().__getitem__(index)  # type: ignore[index]


def test_a_long_stop_text_that_an_answer_follows_far_costs_no_more_than_the_answer() -> None:
    """Sixty thousand letters, followed for four thousand and then missed, again and again."""
    stop = CountedText("ab" * 30_000)
    stop.looks = 0
    text = ("ab" * 2_000 + "c") * 4
    automaton = StopAutomaton(stop)
    assert not any(automaton.step(letter) for letter in text)
    assert automaton.length == 0
    assert stop.looks < 6 * len(text)
