"""Decision reads: the question of a `Work` with `score` as a request to the engine, and its event as an answer."""

from __future__ import annotations

from collections.abc import Sequence

from service.decode.block import MASKED, PositionLogprobs
from service.engine.request import BlockEvent, LogprobsRequest
from service.errors import InvalidRequest
from service.text import TextCodec
from service.text.detokenizer import TokenTextStream
from service.text.score_prompts import SCORED, scored_chat_ids, scored_text_ids
from service.text.token_text import TopLogprob
from service.wire import PlaceScores, Scoring, Work


class Reader:
    """Encodes questions and names what was found. `mask`: the mask token. `vocab_size`: of the model."""

    def __init__(self, codec: TextCodec, mask: int, vocab_size: int) -> None:
        self._codec, self._mask, self._vocab_size = codec, mask, vocab_size

    def prompt(self, work: Work) -> tuple[int, ...]:
        """The pinned tokens, `MASKED` at places. InvalidRequest if there is no place, or too many."""
        scoring = _scoring(work)
        if work.messages is not None:
            ids = scored_chat_ids(self._codec, work.messages, scoring.mark)
        elif work.token_ids is not None:
            ids = work.token_ids if SCORED in work.token_ids else (*work.token_ids, SCORED)
        else:
            ids = scored_text_ids(self._codec, work.text or "", scoring.mark)
        if (count := ids.count(SCORED)) > scoring.most_places:
            raise InvalidRequest(f"the text has {count} places, allowed are {scoring.most_places}", param="mark")
        return tuple(MASKED if token == SCORED else token for token in ids)

    def asked(self, work: Work) -> LogprobsRequest:
        """What is asked of every place. InvalidRequest for a label that is not one token."""
        scoring = _scoring(work)
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

    def named(self, asked: LogprobsRequest, event: BlockEvent) -> tuple[PlaceScores, ...]:
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


def _scoring(work: Work) -> Scoring:
    if work.scoring is None:
        raise AssertionError("a work without a question is not to be scored")
    return work.scoring


def _place(place: int, known: PositionLogprobs, asked: LogprobsRequest, pieces: TokenTextStream) -> PlaceScores:
    given = zip(asked.token_ids, known.named, strict=True)
    return PlaceScores(place, _named(tuple(given), pieces), _named(known.top, pieces))


def _named(scores: Sequence[tuple[int, float]], pieces: TokenTextStream) -> tuple[TopLogprob, ...]:
    return tuple(TopLogprob(token, *pieces.name(token), logprob) for token, logprob in scores)
