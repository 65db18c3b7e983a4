"""Texts that cannot fit are refused without being encoded; a text that fits never is, whatever its tokenizer does."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from service.errors import PromptTooLong
from service.text import TextCodec
from service.text import codec as codec_module
from service.text.length import TokenLength

ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
LONG = "<|" + "long" * 30 + "|>"


def bpe(tokens: list[str], **options: Any) -> Tokenizer:
    """BPE of these tokens, and of those that merges make: `aa`, `aaaa`, `aaaaaaaa`, and the same of `K`."""
    made = {letter: [letter * 2**power for power in range(4)] for letter in "aK"}
    vocabulary = {token: index for index, token in enumerate(dict.fromkeys([*tokens, *made["a"], *made["K"]]))}
    return Tokenizer(models.BPE(vocabulary, [(half, half) for row in made.values() for half in row[:-1]], **options))


def byte_level(**parts: Any) -> Tokenizer:
    tokenizer = bpe(ALPHABET)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    for name, part in parts.items():
        setattr(tokenizer, name, part)
    return tokenizer


def removing() -> Tokenizer:
    split = pre_tokenizers.Split(Regex(r"\s"), "removed")
    return byte_level(pre_tokenizer=pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False)]))


def metaspace() -> Tokenizer:
    tokenizer = bpe(["▁", "a", *BYTES], byte_fallback=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    return tokenizer


def words() -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "<unk>": 1}, "<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer


#: a tokenizer -> the most bytes of one of its tokens
TOKENIZERS: list[tuple[Callable[[], Tokenizer], int | None]] = [
    (byte_level, 8),
    (lambda: byte_level(normalizer=normalizers.NFC()), 32),
    (lambda: byte_level(normalizer=normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])), 32),
    (lambda: byte_level(normalizer=normalizers.Replace(" ", "▁")), 8),
    (lambda: byte_level(normalizer=normalizers.Replace("▁", " ")), None),
    (lambda: byte_level(normalizer=normalizers.Replace(Regex("a+"), "aaa")), None),
    (lambda: byte_level(normalizer=normalizers.Strip()), None),
    (lambda: byte_level(normalizer=normalizers.StripAccents()), None),
    (removing, None),
    (metaspace, 8),
    (words, None),
    (lambda: bpe(["a", "b", "<unk>"], unk_token="<unk>"), 8),
    (lambda: bpe(["a", "b", "<unk>"], unk_token="<unk>", fuse_unk=True), None),
    (lambda: bpe(["a", "b"]), None),
]
ADDED: list[list[AddedToken]] = [
    [],
    [AddedToken("<|end|>", special=True, lstrip=True, rstrip=True), AddedToken("<s>", rstrip=True)],
    [AddedToken("<|end|>", special=True), AddedToken(LONG, special=False)],
]


def codec_of(tokenizer: Tokenizer, added: list[AddedToken]) -> TextCodec:
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([token for token in added if not token.special])
    tokenizer.add_special_tokens([token for token in added if token.special])
    template = "{% for message in messages %}<|end|>{{ message.content }}{% endfor %}"
    return TextCodec(PreTrainedTokenizerFast(tokenizer_object=tokenizer, chat_template=template))


@cache
def codecs() -> list[TextCodec]:
    return [codec_of(make(), added) for make, _ in TOKENIZERS for added in ADDED]


WRITTEN = [
    "a", "b", "7", "a" * 50, " ", " " * 30, "\n", "▁", "é", "漢", "😀", "\x00", "\ue000", "<s>", "<s>  ",
    "  <|end|>", LONG,
]  # fmt: skip
SHORTENED = [
    "\U0001d41a", "e\u0301", "\u212a", "ﬁ", "\ufdfa", "\u1112\u1161\u11ab", "\U0001d6ca\u0308\u0301",
    "\u1fbe\u0308\u0301",
]  # fmt: skip
PARTS = st.tuples(st.sampled_from(WRITTEN + SHORTENED), st.sampled_from([1, 2, 100])).map(
    lambda part: part[0] * part[1]
)


def assert_fits(codec: TextCodec, text: str, *, chat: bool = False) -> None:
    """The codec takes the text if so many tokens are allowed as it has."""
    encode = codec.encode_message if chat else codec.encode
    codec.limit_to(10**9)
    ids = encode(text)
    codec.limit_to(max(1, len(ids)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(codec_module, "_PIECE", 512)
        patch.setattr(codec_module, "_CUT", 256)
        assert encode(text) == ids


@settings(max_examples=60, deadline=None)
@given(
    st.lists(PARTS, min_size=1, max_size=8).map("".join), st.deferred(lambda: st.sampled_from(codecs())), st.booleans()
)
def test_a_text_that_fits_is_never_refused(text, codec, chat):
    assert_fits(codec, text, chat=chat)


@pytest.mark.parametrize("part", [*SHORTENED, " ", "a"])
def test_a_part_that_takes_few_tokens_is_never_refused(part):
    for codec in codecs():
        assert_fits(codec, part * 64)


@pytest.mark.parametrize(("make", "most"), TOKENIZERS)
def test_a_token_stands_for_so_many_bytes(make, most):
    assert TokenLength(make()).most == most
    longer = make()
    longer.add_tokens([LONG])
    length = TokenLength(longer).most
    assert length is None if most is None else length in (len(LONG), 4 * len(LONG))


class TestTexts:
    @pytest.fixture
    def codec(self, monkeypatch: pytest.MonkeyPatch) -> TextCodec:
        """A context of 16 tokens of eight bytes. It may encode none."""
        codec = codec_of(byte_level(), ADDED[1])
        codec.limit_to(16)

        def encoded(text: str) -> list[int]:
            raise AssertionError(f"{len(text)} characters were encoded")

        monkeypatch.setattr(codec, "tokenize", encoded)
        return codec

    def test_one_that_cannot_fit_is_not_encoded(self, codec):
        with pytest.raises(PromptTooLong) as refusal:
            codec.encode("1" * 129)
        message = f"{refusal.value}"
        assert "maximum context length is 16 tokens" in message
        assert "prompt has 129 bytes, and 16 tokens stand for at most 16 x 8 bytes" in message
        assert refusal.value.param == "prompt"
        with pytest.raises(PromptTooLong) as refusal:
            codec.encode_message("漢" * 41)
        assert refusal.value.param == "messages"

    def test_one_that_may_fit_is_encoded(self, codec):
        with pytest.raises(AssertionError, match="128 characters were encoded"):
            codec.encode("1" * 128)
        with pytest.raises(AssertionError, match="were encoded"):
            codec.encode(" " * 10_000)  # a token may take them

    def test_one_of_short_tokens_is_encoded_in_part(self, codec, monkeypatch):
        monkeypatch.setattr(codec, "_token_length", None)
        pieces = list[str]()

        def encoded(text: str) -> list[int]:
            pieces.append(text)
            return [1] * len(text)

        monkeypatch.setattr(codec, "tokenize", encoded)
        with pytest.raises(PromptTooLong, match="prompt has more than 16 tokens"):
            codec.encode("1" * 10**6)
        assert sum(map(len, pieces)) < 40_000
