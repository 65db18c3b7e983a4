"""The tokens of a checkpoint as llguidance needs them: the bytes of each token, and which tokens end an answer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
from llguidance import LLTokenizer
from numpy.typing import NDArray

from service.errors import ConstraintNotAvailable

Bits = NDArray[np.uint8]
#: the arguments of a `Vocabulary`
Definition = tuple[str, int, tuple[int, ...]]


class Tokenizer(Protocol):
    """What this module needs of a tokenizer."""

    @property
    def definition(self) -> str:
        """The tokenizer as `tokenizer.json` writes it."""

    @property
    def vocab_size(self) -> int:
        """The number of its tokens."""


class Model(Protocol):
    """What this module needs of a model."""

    @property
    def vocab_size(self) -> int:
        """The number of tokens that it has logits for."""

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """The tokens that end an answer."""


class Vocabulary:
    """The tokenizer of a checkpoint. Making it takes seconds for a large vocabulary.

    `tokenizer`: as `tokenizer.json` writes it. `size`: the model's number of tokens. `eos`: the tokens that end an
    answer. ConstraintNotAvailable if answers of this tokenizer cannot be constrained.

    `marks`: text -> token of the added tokens that are text, such as Qwen3's `<tool_call>`, and that the library takes
    for control tokens because of their form. They come only where a grammar names them.
    `definition`: what it was made of, for another process.
    """

    def __init__(self, tokenizer: str, size: int, eos: Sequence[int]) -> None:
        if not eos:
            raise ConstraintNotAvailable("this checkpoint has no end token, so no constrained answer could end")
        self.eos = tuple(eos)
        self.definition: Definition = (tokenizer, size, self.eos)
        try:
            self.tokens = LLTokenizer(tokenizer, n_vocab=size, eos_token=list(eos))
        except ValueError as error:
            message = f"this checkpoint's tokenizer does not say which bytes its tokens are: {error}"
            raise ConstraintNotAvailable(message) from error
        self.marks = _marks(tokenizer, self.tokens, self.eos)
        shown = set(self.marks.values())
        special = self.tokens.is_special_token
        texts = [(token in shown or not special(token)) and token not in self.eos for token in range(size)]
        self._is_text = tuple(texts)
        self.text_bits = _bits(np.array(texts))
        self.eos_bits = _bits(np.isin(np.arange(size), self.eos))

    @classmethod
    def of(cls, tokenizer: Tokenizer, model: Model) -> Vocabulary:
        """The vocabulary of a checkpoint. Its model may have more tokens than its tokenizer."""
        return cls(tokenizer.definition, max(tokenizer.vocab_size, model.vocab_size), model.eos_token_ids)

    def is_text(self, token: int) -> bool:
        """Whether a token is text: no control token, no end token, no row of the model that means nothing."""
        return self._is_text[token]


def _marks(tokenizer: str, tokens: LLTokenizer, eos: Sequence[int]) -> Mapping[str, int]:
    added = json.loads(tokenizer).get("added_tokens") or ()
    return {
        one["content"]: one["id"]
        for one in added
        if not one["special"] and one["id"] not in eos and tokens.is_special_token(one["id"])
    }


def _bits(tokens: NDArray[np.bool_]) -> Bits:
    """A bit for every token, filled up to whole words of 32."""
    packed = np.packbits(tokens, bitorder="little")
    return np.pad(packed, (0, -len(packed) % 4))
