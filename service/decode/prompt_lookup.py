"""Prompt lookup: drafts copied from the request's own text, where the last tokens occurred before.

Answers repeat their prompts: code edits, retrieval, JSON. The copied tokens need no forward. Source: prompt lookup
decoding (`prompt_lookup_num_tokens` of Hugging Face, `ngram` of vLLM), for text from left to right. Here a block has
tokens in any order, so a place counts only if it agrees with all of them.

The search reads the text's bytes, at most `_PLACES` times from the end, so nothing is indexed. A token takes 4 bytes.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import NamedTuple

from msgspec.structs import replace

from service.decode.block import MASKED, Block
from service.decode.policy import Prediction

#: the fewest tokens that must agree, the most that are compared, and the most places
_LEAST, _LONGEST, _PLACES = 2, 8, 8
#: How often the next token is right by the number of tokens that agree, from `_LEAST` on: measured on the demo's
#: Python text. The weight of that, in tokens of the request
_RIGHT, _WEIGHT = (0.2, 0.4, 0.5, 0.5, 0.55, 0.6, 0.7, 0.8), 4.0
#: A copied token replaces a predicted one whose confidence is below this multiple of its own.
_PREFERRED = 0.8
_SIZE = array("i").itemsize


class Continuation(NamedTuple):
    """The tokens of a block, from `first` on those after a place of the text.

    `agreed`: the number of tokens that are the same, before `first` and in a state whose best place this is.
    """

    tokens: tuple[int, ...]
    agreed: int
    first: int

    @property
    def kind(self) -> int:
        """The index of its reliability."""
        return min(self.agreed - _LEAST, len(_RIGHT) - 1)


class PromptLookup:
    """The text of a request, up to the block that is decoded. It learns how often copied tokens are right."""

    __slots__ = ("_continuations", "_counts", "_matches", "_searched", "_text")

    def __init__(self, tokens: Iterable[int]) -> None:
        self._text = bytearray(array("i", tokens).tobytes())
        self._counts = [(_WEIGHT, _WEIGHT * share) for share in _RIGHT]
        # of the present block: the places, the leading tokens that were looked for, and the best place of each state
        self._matches: list[Continuation] = []
        self._searched: set[tuple[int, ...]] = set()
        self._continuations: dict[Block, Continuation | None] = {}

    def append(self, tokens: tuple[int, ...]) -> None:
        """The tokens of the block that was decoded, which is final now."""
        for state, continuation in self._continuations.items():
            if continuation is not None and state.tokens[: (first := state.num_leading)] == tokens[:first]:
                count, right = self._counts[continuation.kind]
                self._counts[continuation.kind] = count + 1, right + (continuation.tokens[first] == tokens[first])
        self._matches.clear()
        self._searched.clear()
        self._continuations.clear()
        self._text += array("i", tokens).tobytes()

    def prediction(self, block: Block, count: int) -> Prediction | None:
        """Copied tokens at the first `count` masked positions. The later one stands, the less sure it is.

        None: the last tokens did not occur before.
        """
        if (continuation := self._continuation(block)) is None:
            return None
        masked, confidence = block.masked[:count], self._confidence(continuation)
        confidences = [confidence ** (index + 1) for index in range(len(masked))]
        return Prediction(masked, [continuation.tokens[position] for position in masked], confidences)

    def merged(self, prediction: Prediction, block: Block, count: int) -> Prediction:
        """The prediction with copied tokens where they are more likely, and surer where both agree.

        `prediction`: an earlier state's prediction of the block's masked positions. `count`: the number of the first
        positions that may have copied tokens.
        """
        if not prediction.positions or (continuation := self._continuation(block)) is None:
            return prediction
        tokens, confidences = [*prediction.tokens], [*prediction.confidences]
        reliability = self._confidence(continuation)
        for index, position in enumerate(prediction.positions[:count]):
            token, confidence = continuation.tokens[position], confidences[index]
            if token == tokens[index]:
                confidences[index] = 1.0 - (1.0 - confidence) * (1.0 - reliability)
            elif confidence < _PREFERRED * reliability:
                tokens[index], confidences[index] = token, reliability
        return replace(prediction, tokens=tokens, confidences=confidences, logprobs=(), token_logprobs=())

    def _confidence(self, continuation: Continuation) -> float:
        count, right = self._counts[continuation.kind]
        return right / count

    def _continuation(self, state: Block) -> Continuation | None:
        if state not in self._continuations:
            best = self._best(state)
            self._continuations[state] = self._best(state) if best is None and self._search(state) else best
        return self._continuations[state]

    def _best(self, state: Block) -> Continuation | None:
        """The place that agrees with the state and has most tokens before it in common, the latest of equal ones."""
        tokens, revealed = state.tokens, state.num_revealed
        best: Continuation | None = None
        for match in self._matches:
            longer = best is None or match.agreed - match.first > best.agreed - best.first
            if longer and all(map(_agree, tokens, match.tokens)):
                best = match
        return best and best._replace(agreed=best.agreed + revealed - best.first)

    def _search(self, state: Block) -> bool:
        """Finds places after which the text has the state's leading tokens. -> whether there are new ones."""
        first = state.num_leading
        leading, missing = state.tokens[:first], len(state.tokens) - first
        if leading in self._searched:
            return False
        self._searched.add(leading)
        data = bytes(self._text + array("i", leading).tobytes())
        text, length, count = memoryview(data).cast("i"), len(data) // _SIZE, len(self._matches)
        suffix, end = data[-_LEAST * _SIZE :], len(data) - _SIZE
        for _ in range(_PLACES if length > _LEAST else 0):
            if (start := data.rfind(suffix, 0, end)) < 0:
                break
            end = start + len(suffix) - 1
            if start % _SIZE:
                continue  # it is no token's beginning
            origin, agreed = start // _SIZE + _LEAST, _LEAST
            while agreed < min(_LONGEST, origin) and text[origin - agreed - 1] == text[length - agreed - 1]:
                agreed += 1
            tokens = list(text[origin : origin + missing])
            while len(tokens) < missing:  # the text repeats itself
                tokens.append(tokens[origin - length])
            self._matches.append(Continuation((*leading, *tokens), agreed, first))
        return len(self._matches) > count


def _agree(token: int, copied: int) -> bool:
    return token in {MASKED, copied}
