"""The words that an answer may not contain, as token ids: the tokens that would complete one of them.

A masked position has tokens on both sides. So each token of a word is forbidden where all other tokens of the word
stand at their positions. In text that comes from left to right only the last token is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from service.decode.block import MASKED

_Word = tuple[int, ...]


class BadWords:
    """Words of token ids. `short`: the tokens that are a word. `long`: whether there are words of several tokens."""

    def __init__(self, words: Sequence[_Word]) -> None:
        self.short = frozenset(word[0] for word in words if len(word) == 1)
        longer = [word for word in words if len(word) > 1]
        self.long = bool(longer)
        self._longest = max(map(len, longer), default=0)
        # the words by their token beside the missing one: the token before it, or after it if it is the first
        self._after: defaultdict[int, list[tuple[_Word, int]]] = defaultdict(list)
        self._before: defaultdict[int, list[tuple[_Word, int]]] = defaultdict(list)
        for word in longer:
            self._before[word[1]].append((word, 0))
            for index in range(1, len(word)):
                self._after[word[index - 1]].append((word, index))

    def completing(self, answer: Sequence[int], block: Sequence[int], position: int) -> set[int]:
        """The tokens that complete a word of several tokens at a position.

        `answer`: the answer's tokens before the block. `block`: the tokens of the block's part of the answer, `MASKED`
        where nothing stands. `position`: an index of `block`; the token there does not count.
        """
        before = answer[max(0, len(answer) + position - self._longest + 1) :]
        tokens, position = (*before, *block[: position + self._longest]), len(before) + position
        left = tokens[position - 1] if position else MASKED
        right = tokens[position + 1] if position + 1 < len(tokens) else MASKED
        words = (*self._after.get(left, ()), *self._before.get(right, ()))
        return {word[index] for word, index in words if _stands(word, index, tokens, position - index)}


def _stands(word: _Word, index: int, tokens: Sequence[int], start: int) -> bool:
    """Whether all tokens of a word but the one at `index` stand in `tokens` from `start` on."""
    if start < 0 or start + len(word) > len(tokens):
        return False
    return word[:index] == tokens[start : start + index] and (
        word[index + 1 :] == tokens[start + index + 1 : start + len(word)]
    )
