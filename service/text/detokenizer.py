"""Detokenizes an answer as its token ids come: its text up to a stop text, and the text of each token.

Text is returned as soon as it consists of whole characters. tokenizers' DecodeStream does that, except where it raises.
With byte-fallback vocabularies, a byte that belongs to no character changes the text of earlier bytes, which is already
returned.
"""

import re
from collections.abc import Sequence
from itertools import zip_longest
from typing import Final

from msgspec.structs import replace
from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream
from transformers.convert_slow_tokenizer import bytes_to_unicode

from service.text.token_text import TokenText, TopLogprob

#: (token id, natural logarithm of its probability)
IdLogprobs = Sequence[tuple[int, float]]

_BYTES = {letter: byte for byte, letter in bytes_to_unicode().items()}
_BYTE_FALLBACK = re.compile(r"<0x([0-9A-F]{2})>")
_BROKEN: Final = "\ufffd"


class IncrementalDetokenizer:
    """Decodes one answer. Control tokens have no text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._stream = DecodeStream(skip_special_tokens=True)
        self._ids: list[int] = []
        self._length = 0

    def step(self, token: int) -> str:
        """The text that this token completes. Empty within a character."""
        self._ids.append(token)
        try:
            text = self._stream.step(self._tokenizer, token) or ""
        except Exception:  # noqa: BLE001 - the library raises nothing narrower
            self._stream = DecodeStream(self._ids, skip_special_tokens=True)
            text = self.remaining()
        self._length += len(text)
        return text

    def remaining(self) -> str:
        """The text that is not returned yet. Called at the end of the answer."""
        return self._tokenizer.decode(self._ids, skip_special_tokens=True)[self._length :]


class TextStream:
    """Decodes the token ids of one answer. Never returns a part of a character or of a stop text.

    `stopped_by`: the stop text that ended the answer; later ids are ignored. The returned texts together are the
    answer up to the first complete stop text. If several are complete at once, the longest one counts. Stop texts are
    not searched in the text of the first `min_tokens` tokens.
    """

    def __init__(self, tokenizer: Tokenizer, stop: tuple[str, ...], min_tokens: int = 0) -> None:
        self._unsearched = min_tokens if stop else 0
        self._stops = [StopAutomaton(text) for text in stop]
        self._decoder = IncrementalDetokenizer(tokenizer)
        self._held = ""
        self.stopped_by: str | None = None

    @property
    def stopped(self) -> bool:
        return self.stopped_by is not None

    def push(self, ids: Sequence[int]) -> tuple[str, tuple[int, ...]]:
        """The text that is certain after these ids, and the ids among them that belong to the answer."""
        ready = ""
        for count, token in enumerate(ids):
            if self.stopped:
                return ready, tuple(ids[:count])
            text = self._decoder.step(token)
            if self._unsearched:
                self._unsearched -= 1
                ready += text
            else:
                ready += self._add(text)
        return ready, tuple(ids)

    def finish(self) -> str:
        """The text that is held back. Called at the end of the answer."""
        if self.stopped:
            return ""
        ready = self._add(self._decoder.remaining()) + self._held
        self._held = ""
        return ready

    def _add(self, text: str) -> str:
        if not self._stops:
            return text
        held = self._held + text
        for count, letter in enumerate(text, len(self._held) + 1):
            if length := max([automaton.step(letter) for automaton in self._stops]):  # of several the longest
                self.stopped_by, self._held = held[count - length : count], ""
                return held[: count - length]
        certain = len(held) - max(automaton.length for automaton in self._stops)
        self._held = held[certain:]
        return held[:certain]


class StopAutomaton:
    """Finds a stop text, not empty, in a text that comes letter by letter, in a time that grows only with the text.

    `length`: the number of its first letters that the last letters match. The table (Knuth, Morris, Pratt) grows only
    as far as the stop text has matched, so a stop text of a megabyte costs nothing before it matches.
    `_table[n - 1]`: the length of the longest shorter beginning of the stop text that its first n letters end with.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._table = [0]
        self.length = 0

    def step(self, letter: str) -> int:
        """The text's length if this letter completes it, else 0."""
        while self.length and self._text[self.length] != letter:
            self.length = self._shorter(self.length)
        self.length += self._text[self.length] == letter
        return self.length if self.length == len(self._text) else 0

    def _shorter(self, length: int) -> int:
        while len(self._table) < length:
            at = len(self._table)
            shorter = self._table[at - 1]
            while shorter and self._text[at] != self._text[shorter]:
                shorter = self._table[shorter - 1]
            self._table.append(shorter + (self._text[at] == self._text[shorter]))
        return self._table[length - 1]


class TokenTextStream:
    """The text of each token of one answer, as log-probabilities need it.

    A token that is not a whole character has no text. Its bytes are read from the vocabulary, in the forms of
    byte-level and byte-fallback tokenizers.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = IncrementalDetokenizer(tokenizer)
        self._control = {id_ for id_, token in tokenizer.get_added_tokens_decoder().items() if token.special}
        self._within_character = False
        self._previous: int | None = None

    def push(self, token_ids: Sequence[int], top_logprobs: Sequence[IdLogprobs] = ()) -> tuple[TokenText, ...]:
        """The texts of the next tokens. `top_logprobs`: the most likely tokens at the position of each token."""
        return tuple(
            self._with_logprobs(token, logprobs)
            for token, logprobs in zip_longest(token_ids, top_logprobs[: len(token_ids)])
        )

    def name(self, token: int, previous: int | None = None) -> tuple[str, bytes | None]:
        """The text of a token after the token `previous`, or `token_id:N`; and its bytes."""
        if token in self._control:
            return self._tokenizer.id_to_token(token) or "", None
        context = [] if previous is None or previous in self._control else [previous]
        start = self._tokenizer.decode(context, skip_special_tokens=True)
        if _BROKEN in start:  # a whole token after a part of a character has its own text, as after itself
            context, start = [token], self._tokenizer.decode([token], skip_special_tokens=True)
        text = self._tokenizer.decode([*context, token], skip_special_tokens=True)
        if not text.startswith(start) or _BROKEN in start or _BROKEN in text or text == start:
            return f"token_id:{token}", self._bytes(token)
        delta = text[len(start) :]
        return delta, delta.encode()

    def _with_logprobs(self, token: int, logprobs: IdLogprobs | None) -> TokenText:
        previous, text = self._previous, self._next(token)
        if not logprobs:
            return text
        top_logprobs = (
            TopLogprob(other, text.text, text.data, logprob)
            if other == token
            else TopLogprob(other, *self.name(other, previous), logprob)
            for other, logprob in logprobs
        )
        return replace(text, top_logprobs=tuple(top_logprobs))

    def _next(self, token: int) -> TokenText:
        self._previous = token
        delta = self._decoder.step(token)
        if token in self._control:
            return TokenText(self._tokenizer.id_to_token(token) or "", None, delta)
        within, self._within_character = self._within_character, delta == ""
        if delta and not within:
            return TokenText(delta, delta.encode(), delta)
        return TokenText(*(self.name(token, token) if delta else (f"token_id:{token}", self._bytes(token))), delta)

    def _bytes(self, token: int) -> bytes | None:
        written = self._tokenizer.id_to_token(token) or ""
        if fallback := _BYTE_FALLBACK.fullmatch(written):
            return bytes([int(fallback[1], 16)])
        if written and all(letter in _BYTES for letter in written):
            return bytes(_BYTES[letter] for letter in written)
        return None
