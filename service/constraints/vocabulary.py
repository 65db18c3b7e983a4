"""The tokens of a checkpoint as llguidance needs them: the bytes of each token, and the tokens that end an answer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from llguidance import LLTokenizer
from numpy.typing import NDArray

from service.errors import ConstraintNotAvailable

#: a bit for every token, as bytes
TokenBitmask = NDArray[np.uint8]
#: the arguments of a `TokenVocabulary`
VocabularyDefinition = tuple[str, int, tuple[int, ...]]


class TokenVocabulary:
    """The tokenizer of a checkpoint. Making it takes seconds for a large vocabulary.

    `tokenizer`: the content of `tokenizer.json`. `size`: the model's number of tokens. `eos`: the tokens that end an
    answer. ConstraintNotAvailable if answers of this tokenizer cannot be constrained.

    `marks`: text -> token of added tokens that are text, such as Qwen3's `<tool_call>`. By their form the library takes
    them for control tokens. They come only where a grammar names them.
    `definition`: the constructor's arguments, for another process.
    """

    def __init__(self, tokenizer: str, size: int, eos: Sequence[int]) -> None:
        if not eos:
            raise ConstraintNotAvailable("this checkpoint has no end token, so no constrained answer could end")
        self.eos = tuple(eos)
        self.definition: VocabularyDefinition = (tokenizer, size, self.eos)
        try:
            self.tokens = LLTokenizer(tokenizer, n_vocab=size, eos_token=list(eos))
        except ValueError as error:
            message = f"this checkpoint's tokenizer does not say which bytes its tokens are: {error}"
            raise ConstraintNotAvailable(message) from error
        special = self.tokens.is_special_token
        added = [token for token in json.loads(tokenizer).get("added_tokens") or () if not token["special"]]
        marks = {token["id"] for token in added if token["id"] not in eos and special(token["id"])}
        self.marks: Mapping[str, int] = {token["content"]: token["id"] for token in added if token["id"] in marks}
        texts = [(token in marks or not special(token)) and token not in self.eos for token in range(size)]
        self._is_text = tuple(texts)
        self.text_mask = _bitmask(np.array(texts))
        self.eos_mask = _bitmask(np.isin(np.arange(size), self.eos))

    @classmethod
    def for_checkpoint(cls, codec: Any, config: Any) -> TokenVocabulary:
        """The vocabulary of a checkpoint, by its `TextCodec` and `ModelConfig`. The model may have more tokens."""
        return cls(codec.definition, max(codec.vocab_size, config.vocab_size), codec.end_tokens(config.eos_token_ids))

    def is_text(self, token: int) -> bool:
        """Whether a token is text: no control token, no end token, no logit without a token."""
        return self._is_text[token]


def _bitmask(tokens: NDArray[np.bool_]) -> TokenBitmask:
    """A bit for every token, padded to whole words of 32."""
    packed = np.packbits(tokens, bitorder="little")
    return np.pad(packed, (0, -len(packed) % 4))
