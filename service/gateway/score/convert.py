"""Parses a body of POST /v1/score: one `Work` per item."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from service.decode.mode import ScoreMode
from service.engine.request import SamplingParams
from service.errors import InvalidRequest
from service.gateway.http.validation import parse_own, shared_work
from service.gateway.score.schemas import ScoreItem, ScoreRequest
from service.wire import ModelCard, Scoring, Work

#: the id of a place, in a `Work`
_PLACE = -1
_SHARED = ("timeout_s", "priority", "cache_salt", "prompt_cache_key")


@dataclass(frozen=True, slots=True)
class Plan:
    """One request. `works`: one for each item."""

    works: tuple[Work, ...]
    model: str
    normalize: bool


def plan_scores(body: Mapping[str, Any], card: ModelCard, timeout_limit_s: float) -> Plan:
    """Parses a body. Raises InvalidRequest or UnknownModel with the reason."""
    given = {name: value for name, value in body.items() if value is not None}
    request = parse_own(given, ScoreRequest, card)
    shared = {name: getattr(request, name) for name in _SHARED}
    base = shared_work({**shared, "prompt": "-", "max_new_tokens": 1}, card, timeout_limit_s, 0)
    base = replace(base, params=ScoreMode(), sampling=SamplingParams(), text=None)
    works = tuple(_of_item(base, item, number, request) for number, item in enumerate(request.items))
    return Plan(works, request.model, request.normalize)


def _of_item(base: Work, item: ScoreItem, number: int, request: ScoreRequest) -> Work:
    place = f"items.{number}"
    prompts = [name for name in ("prompt", "prompt_token_ids", "messages") if getattr(item, name) is not None]
    if len(prompts) != 1:
        received = " and ".join(prompts) or "none of them"
        raise InvalidRequest(
            f"{place} has {received}, exactly one of prompt, prompt_token_ids, messages is allowed", param=place
        )
    mark = item.mark or request.mark
    if mark and item.prompt_token_ids is not None:
        if item.mark:
            raise InvalidRequest(f"{place} has mark and prompt_token_ids, whose places are null", param=f"{place}.mark")
        mark = None
    labels, ids = _labels(item, request, place)
    if not (labels or ids or request.top_logprobs):
        raise InvalidRequest(
            f"{place} has no labels, and top_logprobs is 0; at least one of labels, label_token_ids and top_logprobs "
            "is needed",
            param=f"{place}.labels",
        )
    tokens = None if item.prompt_token_ids is None else tuple(_PLACE if t is None else t for t in item.prompt_token_ids)
    return replace(
        base,
        request_id=secrets.token_hex(12),
        text=item.prompt,
        token_ids=tokens,
        messages=None if item.messages is None else tuple(message.model_dump() for message in item.messages),
        scoring=Scoring(labels, ids, mark, request.top_logprobs),
    )


def _labels(item: ScoreItem, request: ScoreRequest, place: str) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """The labels of an item, as texts or as ids: its own, else the request's."""
    for asked, where in ((item, f"{place}."), (request, "")):
        if asked.labels is not None and asked.label_token_ids is not None:
            name = f"{where}labels"
            raise InvalidRequest(f"{name} and {where}label_token_ids are given, allowed is one of them", param=name)
        if asked.labels is not None or asked.label_token_ids is not None:
            return tuple(asked.labels or ()), tuple(asked.label_token_ids or ())
    return (), ()
