"""The answer of POST /v1/score. `schemas.py` has its schema; tests compare the two."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

from service.gateway.score.convert import Plan
from service.text.token_text import TopLogprob
from service.wire import Answer, PlaceScores


def score_json(plan: Plan, answers: Sequence[Answer]) -> dict[str, Any]:
    """The scores of all items. `answers`: one per item, in order."""
    endings = [answer.ending for answer in answers]
    prompts = sum(ending.prompt_tokens for ending in endings)
    cached = sum(ending.stats.cached_tokens for ending in endings)
    return {
        "id": f"score-{plan.works[0].request_id}",
        "object": "list",
        "created": int(time.time()),
        "model": plan.model,
        "data": [
            {
                "index": index,
                "object": "score",
                "places": [_place(one, normalize=plan.normalize) for one in answer.places],
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


def _place(place: PlaceScores, *, normalize: bool) -> dict[str, Any]:
    logprobs = [label.logprob for label in place.labels]
    return {
        "position": place.position,
        "scores": shares(logprobs) if normalize else [math.exp(logprob) for logprob in logprobs],
        "logprobs": logprobs,
        "token_ids": [label.token for label in place.labels],
        "top_logprobs": [_token(one) for one in place.likeliest],
    }


def _token(one: TopLogprob) -> dict[str, Any]:
    data = None if one.data is None else list(one.data)
    return {"token": one.text, "token_id": one.token, "logprob": one.logprob, "bytes": data}


def shares(logprobs: Sequence[float]) -> list[float]:
    """The probabilities divided by their sum, which may be tiny."""
    highest = max(logprobs, default=0.0)
    weights = [math.exp(logprob - highest) for logprob in logprobs]
    return [weight / sum(weights) for weight in weights]
