"""Scores labels at positions of a text: makes the engine's request for a `Scoring`, and the answer of its event."""

from collections.abc import Sequence

from service.decode.block import MASKED
from service.engine.request import BlockEvent, LogprobsRequest
from service.errors import InvalidRequest
from service.messages.wire import PositionScores, ReplicaRequest, Scoring
from service.text import TextCodec
from service.text.codec import SCORED, scored_chat_ids, scored_text_ids
from service.text.token_text import TopLogprob

_MAX_POSITIONS = 32


class PositionScorer:
    """The scoring of one checkpoint. `mask`: the mask token. `vocab_size`: the size of the model's vocabulary."""

    def __init__(self, codec: TextCodec, mask: int, vocab_size: int) -> None:
        self._codec, self._mask, self._vocab_size = codec, mask, vocab_size

    def prompt(self, request: ReplicaRequest, scoring: Scoring) -> tuple[int, ...]:
        """The prompt, `MASKED` at the positions to be scored. InvalidRequest for none, or more than 32."""
        if request.messages is not None:
            ids = scored_chat_ids(self._codec, request.messages, scoring.mark)
        elif request.token_ids is not None:
            ids = request.token_ids if SCORED in request.token_ids else (*request.token_ids, SCORED)
        else:
            ids = scored_text_ids(self._codec, request.text or "", scoring.mark)
        if (count := ids.count(SCORED)) > _MAX_POSITIONS:
            raise InvalidRequest(f"the text has {count} marked positions, allowed are {_MAX_POSITIONS}", param="mark")
        return tuple(MASKED if token == SCORED else token for token in ids)

    def logprobs_request(self, scoring: Scoring) -> LogprobsRequest:
        """The log-probabilities wanted at every position. InvalidRequest for a label that is not one token."""
        tokens = scoring.label_token_ids or tuple(
            self._label_token(index, label) for index, label in enumerate(scoring.labels)
        )
        name = "label_token_ids" if scoring.label_token_ids else "labels"
        for index, token in enumerate(tokens):
            if not 0 <= token < self._vocab_size or token == self._mask:
                allowed = f"allowed are 0 to {self._vocab_size - 1} without the mask token {self._mask}"
                raise InvalidRequest(f"{name} has {token}, {allowed}", param=f"{name}.{index}")
            if (first := tokens.index(token)) < index:
                raise InvalidRequest(f"{name} {first} and {index} are the same token {token}", param=f"{name}.{index}")
        return LogprobsRequest(scoring.top_n, tokens)

    def position_scores(self, request: LogprobsRequest, event: BlockEvent) -> tuple[PositionScores, ...]:
        texts = self._codec.token_texts()

        def named(scores: Sequence[tuple[int, float]]) -> tuple[TopLogprob, ...]:
            return tuple(TopLogprob(token, *texts.name(token), logprob) for token, logprob in scores)

        return tuple(
            PositionScores(
                position, named(list(zip(request.token_ids, logprobs.by_id, strict=True))), named(logprobs.top)
            )
            for position, logprobs in event.position_logprobs
        )

    def _label_token(self, index: int, label: str) -> int:
        ids = self._codec.encode(label) if self._codec.may_be(1, label) else ()
        if len(ids) != 1:
            count = len(ids) or "several"
            raise InvalidRequest(
                f"label {label[:80]!r} is {count} tokens, allowed is one: the tokens of a longer label are not "
                "independent, so one forward does not tell its probability; use labels of one token, or `choice` in "
                "POST /generate",
                param=f"labels.{index}",
            )
        return ids[0]
