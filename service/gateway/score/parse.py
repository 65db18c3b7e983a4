"""Parses a body of POST /v1/score: one `ReplicaRequest` per item."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from msgspec.structs import replace

from service.decode.mode import ScoreMode
from service.engine.request import SamplingParams
from service.errors import InvalidRequest
from service.gateway.http.api_requests import BodyFields, parse_own, parse_shared
from service.gateway.http.driver import ParsedRequest
from service.gateway.http.parse import to_replica_request
from service.gateway.http.protocol import PROMPTS
from service.gateway.score.protocol import ScoreItem, ScoreRequest
from service.wire import ModelCard, ReplicaRequest, Scoring

#: the id of a position to be scored, in a `ReplicaRequest`
_POSITION: Final = -1
_SHARED: Final = ("timeout_s", "priority", "cache_salt", "prompt_cache_key")

FIELDS: Final = BodyFields(frozenset(), {}, frozenset())


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedScore(ParsedRequest):
    """One request. `requests`: one for each item."""

    normalize: bool


def parse_score(body: Mapping[str, Any], card: ModelCard, timeout_limit_s: float) -> ParsedScore:
    """Parses a body. Raises InvalidRequest or UnknownModel with the reason."""
    own, _ = FIELDS.split(body, ScoreRequest.model_fields)
    request = parse_own(own, ScoreRequest, card)
    shared = {name: getattr(request, name) for name in _SHARED}
    common = parse_shared({**shared, "prompt": "-", "max_new_tokens": 1}, card, max_temperature=0)
    base = to_replica_request(common, card, timeout_limit_s, params=ScoreMode(), sampling=SamplingParams(), text=None)
    requests = tuple(_of_item(base, item, index, request) for index, item in enumerate(request.items))
    return ParsedScore(requests=requests, normalize=request.normalize)


def _of_item(base: ReplicaRequest, item: ScoreItem, index: int, request: ScoreRequest) -> ReplicaRequest:
    where = f"items.{index}"
    prompts = [name for name in PROMPTS if getattr(item, name) is not None]
    if len(prompts) != 1:
        received = " and ".join(prompts) or "none of them"
        raise InvalidRequest(
            f"{where} has {received}, exactly one of prompt, prompt_token_ids, messages is allowed", param=where
        )
    mark = item.mark or request.mark
    if mark and item.prompt_token_ids is not None:
        if item.mark:
            raise InvalidRequest(f"{where} has mark and prompt_token_ids, whose places are null", param=f"{where}.mark")
        mark = None
    labels, ids = _labels(item, request, where)
    if not (labels or ids or request.top_logprobs):
        raise InvalidRequest(
            f"{where} has no labels, and top_logprobs is 0; at least one of labels, label_token_ids and top_logprobs "
            "is needed",
            param=f"{where}.labels",
        )
    tokens = (
        None if item.prompt_token_ids is None else tuple(_POSITION if t is None else t for t in item.prompt_token_ids)
    )
    return replace(
        base,
        request_id=secrets.token_hex(12),
        text=item.prompt,
        token_ids=tokens,
        messages=None if item.messages is None else tuple(message.model_dump() for message in item.messages),
        scoring=Scoring(labels, ids, mark, request.top_logprobs),
    )


def _labels(item: ScoreItem, request: ScoreRequest, where: str) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """The labels of an item, as texts or as ids: its own, else the request's."""
    for question, prefix in ((item, f"{where}."), (request, "")):
        if question.labels is not None and question.label_token_ids is not None:
            name = f"{prefix}labels"
            raise InvalidRequest(f"{name} and {prefix}label_token_ids are given, allowed is one of them", param=name)
        if question.labels is not None or question.label_token_ids is not None:
            return tuple(question.labels or ()), tuple(question.label_token_ids or ())
    return (), ()
