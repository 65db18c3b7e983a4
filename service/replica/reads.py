"""Scores labels at positions of a text: the engine's request for a `Scoring`, and its event as an answer."""

from __future__ import annotations

from collections.abc import Sequence

from service.decode.block import MASKED, PositionLogprobs
from service.engine.request import BlockEvent, LogprobsRequest
from service.errors import InvalidRequest
from service.text import TextCodec
from service.text.detokenizer import TokenTextStream
from service.text.score_prompts import SCORED, scored_chat_ids, scored_text_ids
from service.text.token_text import TopLogprob
from service.wire import PositionScores, ReplicaRequest, Scoring


class Reader:
    """Encodes questions and names what was found. `mask`: the mask token. `vocab_size`: of the model."""

    def __init__(self, codec: TextCodec, mask: int, vocab_size: int) -> None:
        self._codec, self._mask, self._vocab_size = codec, mask, vocab_size

    def prompt(self, request: ReplicaRequest) -> tuple[int, ...]:
        """The pinned tokens, `MASKED` at places. InvalidRequest if there is no place, or too many."""
        scoring = _scoring(request)
        if request.messages is not None:
            ids = scored_chat_ids(self._codec, request.messages, scoring.mark)
        elif request.token_ids is not None:
            ids = request.token_ids if SCORED in request.token_ids else (*request.token_ids, SCORED)
        else:
            ids = scored_text_ids(self._codec, request.text or "", scoring.mark)
        if (count := ids.count(SCORED)) > scoring.max_positions:
            raise InvalidRequest(f"the text has {count} places, allowed are {scoring.max_positions}", param="mark")
        return tuple(MASKED if token == SCORED else token for token in ids)

    def asked(self, request: ReplicaRequest) -> LogprobsRequest:
        """What is asked of every place. InvalidRequest for a label that is not one token."""
        scoring = _scoring(request)
        tokens = scoring.label_token_ids or tuple(
            self._label(number, label) for number, label in enumerate(scoring.labels)
        )
        name = "label_token_ids" if scoring.label_token_ids else "labels"
        for number, token in enumerate(tokens):
            if not 0 <= token < self._vocab_size or token == self._mask:
                allowed = f"allowed are 0 to {self._vocab_size - 1} without the mask token {self._mask}"
                raise InvalidRequest(f"{name} has {token}, {allowed}", param=f"{name}.{number}")
            if (first := tokens.index(token)) < number:
                raise InvalidRequest(
                    f"{name} {first} and {number} are the same token {token}", param=f"{name}.{number}"
                )
        return LogprobsRequest(scoring.likeliest, tokens)

    def named(self, asked: LogprobsRequest, event: BlockEvent) -> tuple[PositionScores, ...]:
        """What was found at every place, in the order of the text."""
        pieces = self._codec.token_texts()
        return tuple(_place(place, known, asked, pieces) for place, known in event.position_logprobs)

    def _label(self, number: int, label: str) -> int:
        ids = self._codec.encode(label)
        if len(ids) != 1:
            raise InvalidRequest(
                f"label {label[:80]!r} is {len(ids)} tokens, allowed is one: the tokens of a longer label are not "
                "independent, so one read does not tell its probability; use labels of one token, or `choice` in "
                "POST /generate",
                param=f"labels.{number}",
            )
        return ids[0]


def _scoring(request: ReplicaRequest) -> Scoring:
    if request.scoring is None:
        raise AssertionError("a request without a question is not to be scored")
    return request.scoring


def _place(place: int, known: PositionLogprobs, asked: LogprobsRequest, pieces: TokenTextStream) -> PositionScores:
    given = zip(asked.token_ids, known.by_id, strict=True)
    return PositionScores(place, _named(tuple(given), pieces), _named(known.top, pieces))


def _named(scores: Sequence[tuple[int, float]], pieces: TokenTextStream) -> tuple[TopLogprob, ...]:
    return tuple(TopLogprob(token, *pieces.name(token), logprob) for token, logprob in scores)
