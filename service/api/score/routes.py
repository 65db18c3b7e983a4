"""POST /v1/score: parses the body to one `ReplicaRequest` per item, and builds the answer."""

from __future__ import annotations

import dataclasses
import math
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from fastapi import APIRouter, Request, Response
from msgspec.structs import replace

from service.api.answers import usage_of
from service.api.driver import IngressServices, ResponseBuilder, locked, respond
from service.api.errors import OpenAiErrorAnswer
from service.api.fields import BodyFields, IgnoredFields
from service.api.openapi import API_ERRORS, STORY, errors, model_docs, route_docs
from service.api.parse import WHOLE_ANSWER_INTERVAL, RequestContext, sharing_of, timeout_of, validate_body
from service.api.protocol import PROMPTS
from service.api.score.protocol import ScoreAnswer, ScoredPosition, ScoreItem, ScoreRequest, TokenScore
from service.decode.mode import ScoreMode
from service.engine.request import SamplingParams
from service.errors import InvalidRequest, MrpServeError
from service.ipc.data import Arrival
from service.messages.wire import Answer, PositionScores, ReplicaRequest, Scoring
from service.text.token_text import TopLogprob

#: the id of a position to be scored, in a `ReplicaRequest`
_POSITION: Final = -1
_FIELDS: Final = BodyFields({}, {}, frozenset())
_EXAMPLE: Final = {
    "model": "demo",
    "items": [
        {"messages": [STORY]},
        {"messages": [STORY, {"role": "assistant", "content": "So Tom has[?] apples."}], "mark": "[?]"},
    ],
    "top_logprobs": 3,
}


def score_router(upstream: IngressServices) -> APIRouter:
    """The route, to be mounted at the root."""
    router = APIRouter(prefix="/v1", route_class=locked(upstream.authorize))

    failed = errors(*API_ERRORS, model=OpenAiErrorAnswer)
    docs = route_docs("Probabilities of labels at positions of a pinned text", ScoreAnswer, failed)

    @router.post("/score", **docs, **model_docs(ScoreRequest, _EXAMPLE))
    async def score(request: Request) -> Response:
        return await respond(parse_score, upstream, request)

    return router


def parse_score(body: Mapping[str, Any], context: RequestContext) -> ScoreBuilder:
    """Parses a body. Raises InvalidRequest or UnknownModel with the reason."""
    strict = dataclasses.replace(context, ignored=IgnoredFields(strict=True))
    request = validate_body(_FIELDS.served(body, ScoreRequest, strict.ignored), ScoreRequest, strict)
    base = ReplicaRequest(
        request_id="",
        mode=ScoreMode(),
        sampling=SamplingParams(),
        max_new_tokens=1,
        timeout_s=timeout_of(request, context),
        arrived=Arrival.now(),
        origin=context.origin,
        weights=context.weights,
        sharing=sharing_of(request, context),
        session=request.prompt_cache_key or "",
        stream_interval=WHOLE_ANSWER_INTERVAL,
    )
    requests = [_of_item(base, item, index, request) for index, item in enumerate(request.items)]
    return ScoreBuilder(requests, context.card.name, normalize=request.normalize)


def _of_item(base: ReplicaRequest, item: ScoreItem, index: int, request: ScoreRequest) -> ReplicaRequest:
    path = f"items.{index}"
    prompts = [name for name in PROMPTS if getattr(item, name) is not None]
    if len(prompts) != 1:
        received = " and ".join(prompts) or "none of them"
        raise InvalidRequest(
            f"{path} has {received}, exactly one of prompt, prompt_token_ids, messages is allowed", param=path
        )
    mark = item.mark or request.mark
    if mark and item.prompt_token_ids is not None:
        if item.mark:
            raise InvalidRequest(
                f"{path} has mark and prompt_token_ids, whose positions are null", param=f"{path}.mark"
            )
        mark = None
    labels, ids = _labels(item, request, path)
    if not (labels or ids or request.top_logprobs):
        raise InvalidRequest(
            f"{path} has no labels, and top_logprobs is 0; at least one of labels, label_token_ids and top_logprobs "
            "is needed",
            param=f"{path}.labels",
        )
    tokens = item.prompt_token_ids
    return replace(
        base,
        request_id=secrets.token_hex(12),
        text=item.prompt,
        token_ids=None if tokens is None else tuple(_POSITION if token is None else token for token in tokens),
        messages=None if item.messages is None else tuple(message.model_dump() for message in item.messages),
        scoring=Scoring(labels, ids, mark, request.top_logprobs),
    )


def _labels(item: ScoreItem, request: ScoreRequest, path: str) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """The labels of an item, as texts or as ids. Without any, the labels of the request."""
    for question, prefix in ((item, f"{path}."), (request, "")):
        if question.labels is not None and question.label_token_ids is not None:
            name = f"{prefix}labels"
            raise InvalidRequest(f"{name} and {prefix}label_token_ids are given, allowed is one of them", param=name)
        if question.labels is not None or question.label_token_ids is not None:
            return tuple(question.labels or ()), tuple(question.label_token_ids or ())
    return (), ()


class ScoreBuilder(ResponseBuilder):
    """Builds the answer to one request, which has one `ReplicaRequest` per item. Scores are not streamed."""

    def __init__(self, requests: Sequence[ReplicaRequest], model: str, *, normalize: bool) -> None:
        super().__init__(requests)
        self._model, self._normalize = model, normalize

    async def full_response(self, answers: Sequence[Answer]) -> ScoreAnswer:
        endings = [answer.ending for answer in answers]
        prompts = sum(ending.prompt_tokens for ending in endings)
        cached = sum(ending.stats.cached_tokens for ending in endings)
        return {
            "id": f"score-{self.requests[0].request_id}",
            "object": "list",
            "created": int(time.time()),
            "model": self._model,
            "data": [
                {
                    "index": index,
                    "object": "score",
                    "positions": [self._position(scores) for scores in ending.position_scores],
                }
                for index, ending in enumerate(endings)
            ],
            "usage": {
                **usage_of(prompts, 0),
                "prompt_tokens_details": {"cached_tokens": cached},
            },
        }

    def with_client_names(self, error: MrpServeError, index: int | None) -> MrpServeError:
        """An error that only the replica finds names the item, too."""
        if index is None or not isinstance(error, InvalidRequest):
            return error
        param = f"items.{index}" if error.param is None else f"items.{index}.{error.param}"
        return type(error)(error.message, param=param, retry_after=error.retry_after)

    def _position(self, scores: PositionScores) -> ScoredPosition:
        logprobs = [label.logprob for label in scores.labels]
        return {
            "position": scores.position,
            "scores": shares(logprobs) if self._normalize else [math.exp(logprob) for logprob in logprobs],
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
