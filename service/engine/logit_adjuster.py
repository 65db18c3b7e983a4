"""The changes of a request's logits that depend on the tokens of its sequence: penalties, bias, forbidden tokens.

`docs/sampling.md` defines them. They are a function of a block's state, so a state has the same logits in every mode,
as a draft or not. Knows tokens; no tensors. `forward/logit_adjustments.py` applies the changes.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from service.decode.block import MASKED, Block, Pick
from service.engine.forward.rows import LogitAdjustment
from service.engine.request import GenerationRequest, SamplingParams

_Word = tuple[int, ...]


class _TokenTable(NamedTuple):
    """Tokens of a sequence, `[K]` each. `bias`: -inf for forbidden tokens. `counts`: their number in the answer."""

    tokens: NDArray[np.int32]
    bias: NDArray[np.float32]
    in_prompt: NDArray[np.bool_]
    counts: NDArray[np.int32]


class LogitAdjuster:
    """Makes the adjustments of one request's states. `head`: the number of the prompt's tokens in the first block."""

    def __init__(self, request: GenerationRequest, head: int) -> None:
        prompt, sampling = request.prompt_token_ids, request.sampling
        start = len(prompt) - request.num_continued
        self._sampling = sampling
        self._head = head  # the positions before the block's part of the answer
        self._penalizes = bool(sampling.frequency_penalty or sampling.presence_penalty)
        self._penalizes |= sampling.repetition_penalty != 1
        self._stops = tuple(request.stop_token_ids)
        self._words = BadWords(sampling.bad_words_token_ids)
        self._answer = list(prompt[start:])
        self._table = _token_table(prompt[:start], self._answer if self._penalizes else (), sampling, self._words.short)
        self._index = {token: index for index, token in enumerate(self._table.tokens.tolist())}

    @property
    def knows_places(self) -> bool:
        """Whether tokens are forbidden by their place in the answer, so that none may move."""
        return self._words.long or self._sampling.min_tokens > 0

    def advance(self, tokens: Sequence[int]) -> None:
        self._answer += tokens
        self._head, self._table = 0, self._counted(tokens)
        for index, token in enumerate(self._table.tokens[len(self._index) :].tolist(), len(self._index)):
            self._index[token] = index

    def adjustments(
        self, state: Block, mask: NDArray[np.uint8] | None, rescore: Iterable[int] = ()
    ) -> tuple[LogitAdjustment, ...]:
        """The adjustments of a state, then of the state with each position of `rescore` masked again.

        `mask`: the tokens that the grammar allows at the leftmost masked position, a bit each. If all are forbidden,
        none is.
        """
        remasked = (self._adjustment(state.remask((position,)), None) for position in rescore)
        return (self._adjustment(state, mask), *remasked)

    def without_bad_words(self, state: Block, picks: tuple[Pick, ...]) -> tuple[Pick, ...]:
        """The picks before the first that completes a bad word together with picks before it. At least one pick."""
        if len(picks) < 2 or not self._words.long:
            return picks
        head = self._head
        block = list(state.tokens[head:])
        for count, pick in enumerate(picks):
            if count and pick.token in self._words.completing(self._answer, block, pick.position - head):
                return picks[:count]
            block[pick.position - head] = pick.token
        return picks

    def _adjustment(self, state: Block, mask: NDArray[np.uint8] | None) -> LogitAdjustment:
        sampling, block = self._sampling, state.tokens[self._head :]
        tokens, bias, in_prompt, counts = self._counted(block)
        present, forbidden = counts > 0, self._forbidden(block)
        if mask is not None:
            allowed = np.unpackbits(mask, bitorder="little")
            leading = (*forbidden.get(state.num_leading, ()), *self._words.short)
            allowed[[token for token in leading if token < len(allowed)]] = 0
        if mask is not None and not allowed.any():
            bias = np.array([sampling.logit_bias.get(token, 0.0) for token in tokens.tolist()], np.float32)
            forbidden = {}
        divisor = np.where(present | in_prompt, sampling.repetition_penalty, 1.0)
        penalty = sampling.frequency_penalty * counts + sampling.presence_penalty * present
        return LogitAdjustment(tokens, bias, divisor.astype(np.float32), penalty.astype(np.float32), forbidden)

    def _counted(self, block: Sequence[int]) -> _TokenTable:
        """The table with more tokens of the answer. `block`: the tokens of a block's part of it."""
        fresh = Counter(token for token in block if token != MASKED) if self._penalizes else Counter[int]()
        if not fresh:
            return self._table
        new, end = [token for token in fresh if token not in self._index], len(self._table.tokens)
        columns: list[NDArray[Any]] = [np.concatenate([c, np.zeros(len(new), c.dtype)]) for c in self._table]
        table = _TokenTable(*columns)
        for index, token in enumerate(new, end):
            table.tokens[index], table.counts[index] = token, fresh.pop(token)
        for token, count in fresh.items():
            table.counts[self._index[token]] += count
        return table

    def _forbidden(self, block: Sequence[int]) -> dict[int, Sequence[int]]:
        first, minimum = len(self._answer), self._sampling.min_tokens
        forbidden = dict[int, Sequence[int]]()
        if not self._words.long and first >= minimum:
            return forbidden
        for position, token in enumerate(block):
            if token == MASKED:
                stops = self._stops if first + position < minimum else ()
                words = self._words.completing(self._answer, block, position) if self._words.long else ()
                if tokens := (*stops, *words):
                    forbidden[self._head + position] = tokens
        return forbidden


def _token_table(
    prompt: Sequence[int], answer: Sequence[int], sampling: SamplingParams, forbidden: Collection[int]
) -> _TokenTable:
    """The table of a request's prompt and of the beginning of its answer. `forbidden`: the words of one token."""
    repeated = frozenset(prompt) if sampling.repetition_penalty != 1 else frozenset[int]()
    bias, counts = sampling.logit_bias, Counter(answer)
    tokens = list(dict.fromkeys((*repeated, *counts, *bias, *forbidden)))
    return _TokenTable(
        np.array(tokens, np.int32),
        np.array([-np.inf if token in forbidden else bias.get(token, 0.0) for token in tokens], np.float32),
        np.array([token in repeated for token in tokens], np.bool_),
        np.array([counts[token] for token in tokens], np.int32),
    )


class BadWords:
    """The words, as token ids, that an answer may not contain.

    A masked position has tokens on both sides: each token of a word is forbidden where all its other tokens stand.
    """

    def __init__(self, words: Sequence[_Word]) -> None:
        self.short = frozenset(word[0] for word in words if len(word) == 1)  # the tokens that are a word
        longer = [word for word in words if len(word) > 1]
        self.long = bool(longer)  # whether there are words of several tokens
        self._longest = max(map(len, longer), default=0)
        # the words by their token beside the missing one: the token before it, or after it if it is the first
        self._after: defaultdict[int, list[tuple[_Word, int]]] = defaultdict(list)
        self._before: defaultdict[int, list[tuple[_Word, int]]] = defaultdict(list)
        for word in longer:
            self._before[word[1]].append((word, 0))
            for index in range(1, len(word)):
                self._after[word[index - 1]].append((word, index))

    def completing(self, answer: Sequence[int], block: Sequence[int], position: int) -> set[int]:
        """The tokens that complete a word of several tokens at index `position` of `block`.

        `answer`: the answer's tokens before the block. `block`: its part of the answer, `MASKED` where nothing stands.
        """
        before = answer[max(0, len(answer) + position - self._longest + 1) :]
        tokens, position = (*before, *block[: position + self._longest]), len(before) + position
        left = tokens[position - 1] if position else MASKED
        right = tokens[position + 1] if position + 1 < len(tokens) else MASKED
        words = (*self._after.get(left, ()), *self._before.get(right, ()))
        return {word[index] for word, index in words if _stands(word, index, tokens, position - index)}


def _stands(word: _Word, index: int, tokens: Sequence[int], start: int) -> bool:
    if start < 0 or start + len(word) > len(tokens):
        return False
    return word[:index] == tokens[start : start + index] and (
        word[index + 1 :] == tokens[start + index + 1 : start + len(word)]
    )
