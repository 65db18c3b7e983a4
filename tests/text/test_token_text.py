"""What tokens are by themselves, in the three ways in which vocabularies write bytes."""

from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from service.text import TextCodec


def byte_level() -> TextCodec:
    """One token a byte, a whole word, a control token."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: index for index, letter in enumerate(letters)} | {"Ġhi": 256}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|end|>", special=True)])
    tokenizer.add_tokens(["<mark>", "7é😀7"])
    return TextCodec(PreTrainedTokenizerFast(tokenizer_object=tokenizer))


def byte_fallback() -> TextCodec:
    """As Llama's: 256 tokens for bytes, a few words with ▁ for a space."""
    words = {"▁a": 256, "b": 257, "▁": 258, "é": 259, "<unk>": 260}
    vocabulary = {f"<0x{byte:02X}>": byte for byte in range(256)} | words
    tokenizer = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True))
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(parts)
    return TextCodec(PreTrainedTokenizerFast(tokenizer_object=tokenizer))


LEVEL, FALLBACK = byte_level(), byte_fallback()


def test_a_whole_token_is_its_text() -> None:
    ids = [256, *LEVEL.encode("é!")]
    first, *rest = LEVEL.token_texts().push(ids)
    assert (first.text, first.data) == (" hi", b" hi")
    assert [piece.data for piece in rest] == [b"\xc3", b"\xa9", b"!"]
    assert [piece.text for piece in rest] == [f"token_id:{ids[1]}", f"token_id:{ids[2]}", "!"]
    assert [piece.delta for piece in rest] == ["", "é", "!"]


def test_bytes_of_a_fallback_are_read_off_their_names() -> None:
    pieces = FALLBACK.token_texts().push([256, 0xE2, 0x82, 0xAC, 257])
    assert [piece.data for piece in pieces] == [b"a", b"\xe2", b"\x82", b"\xac", b"b"]
    assert [piece.delta for piece in pieces] == ["a", "", "", "€", "b"]


def test_a_whole_token_after_a_part_of_a_character_has_its_own_text_and_bytes() -> None:
    added = LEVEL.encode("<mark>")
    assert len(added) == 1
    for token, text in (
        (added[0], "<mark>"),
        (LEVEL.encode("7é😀7")[0], "7é😀7"),
        (256, " hi"),
        *[(LEVEL.encode("b")[0], "b")],
    ):
        part, whole = LEVEL.token_texts().push([LEVEL.encode("é")[0], token])
        assert (part.data, part.delta) == (b"\xc3", "")
        assert (whole.text, whole.data, whole.delta) == (text, text.encode(), f"\ufffd{text}")
        assert LEVEL.token_texts().name(token, previous=LEVEL.encode("é")[0]) == (text, text.encode())
    (_, word) = FALLBACK.token_texts().push([0xE2, 256])
    assert (word.text, word.data) == (" a", b" a")


def test_a_control_token_has_its_name_and_adds_nothing() -> None:
    (piece,) = LEVEL.token_texts().push([257])
    assert (piece.text, piece.data, piece.delta) == ("<|end|>", None, "")


@given(st.text(max_size=20).map(lambda text: text.rstrip("\ufffd")), st.integers(0, 5))
def test_bytes_together_are_the_texts(text: str, cut: int) -> None:
    """But for U+FFFD at the end of a text, which looks like a part of a character."""
    codec, ids = LEVEL, LEVEL.encode(text)
    maker = codec.token_texts()
    pieces = [*maker.push(ids[:cut]), *maker.push(ids[cut:])]
    assert b"".join(piece.data or b"" for piece in pieces).decode() == text
    assert "".join(piece.delta for piece in pieces) == text


class TestByteFallback:
    def test_a_byte_that_spoils_the_text_before_it_is_no_error(self) -> None:
        stream = FALLBACK.stream()
        pieces = [stream.push([token])[0] for token in (0x41, 0xFF, 257, 256)]
        assert pieces == ["A", "", "\ufffdb", " a"]
        assert stream.finish() == ""

    @given(
        st.lists(st.integers(0, 260), max_size=30), st.lists(st.text("ab\ufffd", min_size=1, max_size=2), max_size=2)
    )
    def test_any_tokens_make_some_text(self, ids: list[int], stop: list[str]) -> None:
        stepwise, whole = FALLBACK.stream(stop), FALLBACK.stream(stop)
        pieces = "".join(stepwise.push([token])[0] for token in ids) + stepwise.finish()
        assert pieces == whole.push(ids)[0] + whole.finish()
        assert not any(text in pieces for text in stop)
        FALLBACK.token_texts().push(ids)

    @given(st.text("ab é€😀", max_size=20))
    def test_whole_characters_come_back(self, text: str) -> None:
        ids = list(text.encode())
        stream = FALLBACK.stream()
        assert "".join(stream.push([token])[0] for token in ids) + stream.finish() == FALLBACK.decode(ids)
