"""Texts that cannot fit a context. `codec.py` asks before it encodes: that takes seconds for a million characters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec
from tokenizers import Tokenizer, pre_tokenizers

#: by how much such normalizers may shorten a text: MATHEMATICAL BOLD IOTA with two marks has 8 bytes, `ΐ` has 2
_SHORTENING: Final = dict.fromkeys(("NFC", "NFD", "NFKC", "NFKD", "Lowercase"), 4) | {"Prepend": 1}
#: parts of a tokenizer that keep every character; these two unless they remove what they match
_KEEPING: Final = frozenset({"ByteLevel", "Digits", "Metaspace"})
_MATCHING: Final = frozenset({"Split", "Punctuation"})


class _Model(msgspec.Struct):
    type: str = ""
    unk_token: str | None = None
    fuse_unk: bool = False
    byte_fallback: bool = False


class _Definition(msgspec.Struct):
    """The parts of `tokenizer.json` that are read here."""

    model: _Model
    added_tokens: list[dict[str, Any]] = []
    normalizer: dict[str, Any] | None = None
    pre_tokenizer: dict[str, Any] | None = None


class TokenLength:
    """How much of a text one token stands for. `most`: the number of bytes, None if it may be any number.

    A token may take all white space beside it (`lstrip`). Then white space does not count.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        definition = msgspec.json.decode(tokenizer.to_str(), type=_Definition)
        added = definition.added_tokens
        self._strips = any(token["lstrip"] or token["rstrip"] for token in added)
        self.most: int | None = None
        factor, parts = _shortening(definition.normalizer), list(_parts(definition.pre_tokenizer))
        vocabulary = tokenizer.get_vocab(with_added_tokens=False)
        byte_level = any(part["type"] == "ByteLevel" for part in parts)
        if factor and all(map(_keeps, parts)) and _writes_all(definition.model, vocabulary, byte_level=byte_level):
            length = len if byte_level else _size
            longest = max(*map(length, vocabulary), *(_size(token["content"]) for token in added), 1)
            self.most = factor * longest

    def size(self, text: str) -> int:
        """The bytes of a text that tokens stand for."""
        return _size("".join(text.split()) if self._strips else text)


def _size(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def _parts(definition: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    """The parts of a normalizer or a pre-tokenizer that is a sequence, else itself."""
    if definition is None:
        return
    if definition["type"] == "Sequence":
        for part in definition.get("normalizers") or definition.get("pretokenizers") or ():
            yield from _parts(part)
    else:
        yield definition


def _shortening(normalizer: dict[str, Any] | None) -> int | None:
    """By how much a normalizer may shorten a text at most. None if by any number."""
    factor = 1
    for part in _parts(normalizer):
        if part["type"] == "Replace":
            old = part["pattern"].get("String")
            if old is None or _size(part["content"]) < _size(old):
                return None
        elif part["type"] in _SHORTENING:
            factor = max(factor, _SHORTENING[part["type"]])
        else:
            return None
    return factor


def _keeps(part: dict[str, Any]) -> bool:
    kind = part["type"]
    return kind in _KEEPING or (kind in _MATCHING and part.get("behavior") != "Removed")


def _writes_all(model: _Model, vocabulary: dict[str, int], *, byte_level: bool) -> bool:
    """Whether the model has a token for every character. Else it leaves out some, or one token stands for many."""
    if model.type != "BPE":
        return False
    if byte_level:
        return vocabulary.keys() >= set(pre_tokenizers.ByteLevel.alphabet())
    if model.byte_fallback and all(f"<0x{byte:02X}>" in vocabulary for byte in range(256)):
        return True
    return model.unk_token is not None and not model.fuse_unk
