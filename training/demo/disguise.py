"""Teaches copying early: words that an answer copies from its prompt become other tokens, the same in both.

A name is one of five, so a backbone that guesses it loses little and learns late to look it up. A random token cannot
be guessed.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from tokenizers import Tokenizer

from service.demo.grammar import ITEMS, LETTERS, NAMES
from training.demo.tokenizer import SPECIALS

_WORDS = (*NAMES, *ITEMS, *LETTERS)
#: how byte-level BPE writes a space
_SPACE = "\u0120"


@dataclass(frozen=True, slots=True)
class Disguise:
    """Changes a share of the examples. `words`: the words that tokens write. `tokens`: what may replace a word."""

    words: dict[int, str]
    tokens: range
    share: float

    @classmethod
    def of(cls, tokenizer: Tokenizer, share: float) -> Disguise:
        """For the words that are single tokens, alone or behind a space."""
        vocabulary = tokenizer.get_vocab()
        written = {text: word for word in _WORDS for text in (word, _SPACE + word)}
        words = {vocabulary[text]: word for text, word in written.items() if text in vocabulary}
        return cls(words, range(len(SPECIALS), len(vocabulary)), share)

    def __call__(self, rng: random.Random, tokens: list[int]) -> list[int]:
        """The tokens of an example, prompt and answer."""
        if rng.random() >= self.share:
            return tokens
        other = {word: rng.choice(self.tokens) for word in _WORDS}
        return [other[self.words[token]] if token in self.words else token for token in tokens]
