"""Builds the answer of POST /v1/score."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from service.gateway.http.driver import ResponseBuilder
from service.gateway.score.parse import ParsedScore
from service.gateway.score.protocol import ScoreAnswer, ScoredPosition, TokenScore
from service.text.token_text import TopLogprob
from service.wire import Answer, ModelCard, PositionScores


class ScoreBuilder(ResponseBuilder):
    """Builds the answer to one request. Scores are not streamed."""

    def __init__(self, parsed: ParsedScore, card: ModelCard) -> None:
        self._parsed, self._model = parsed, card.name

    async def whole(self, answers: Sequence[Answer]) -> ScoreAnswer:
        endings = [answer.ending for answer in answers]
        prompts = sum(ending.prompt_tokens for ending in endings)
        cached = sum(ending.stats.cached_tokens for ending in endings)
        return {
            "id": f"score-{self._parsed.requests[0].request_id}",
            "object": "list",
            "created": int(time.time()),
            "model": self._model,
            "data": [
                {
                    "index": index,
                    "object": "score",
                    "positions": [self._position(scores) for scores in answer.ending.position_scores],
                }
                for index, answer in enumerate(answers)
            ],
            "usage": {
                "prompt_tokens": prompts,
                "completion_tokens": 0,
                "total_tokens": prompts,
                "prompt_tokens_details": {"cached_tokens": cached},
            },
        }

    def _position(self, scores: PositionScores) -> ScoredPosition:
        logprobs = [label.logprob for label in scores.labels]
        return {
            "position": scores.position,
            "scores": shares(logprobs) if self._parsed.normalize else [math.exp(logprob) for logprob in logprobs],
            "logprobs": logprobs,
            "token_ids": [label.token for label in scores.labels],
            "top_logprobs": [_token(likely) for likely in scores.likeliest],
        }


def _token(likely: TopLogprob) -> TokenScore:
    data = None if likely.data is None else list(likely.data)
    return {"token": likely.text, "token_id": likely.token, "logprob": likely.logprob, "bytes": data}


def shares(logprobs: Sequence[float]) -> list[float]:
    """The probabilities divided by their sum, which may be tiny."""
    highest = max(logprobs, default=0.0)
    weights = [math.exp(logprob - highest) for logprob in logprobs]
    return [weight / sum(weights) for weight in weights]
