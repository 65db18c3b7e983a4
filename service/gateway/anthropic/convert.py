"""Parses Anthropic's bodies to a `Plan`: one `Work`, and the form of its answer.

The validation of POST /generate parses the fields that both APIs share.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from service.errors import InvalidRequest
from service.gateway.anthropic.fields import FIELDS
from service.gateway.anthropic.schemas import MAX_TEMPERATURE, CountRequest, MessagesRequest, Prompted
from service.gateway.http.validation import parse_own, shared_work
from service.wire import ModelCard, Work


@dataclass(frozen=True, slots=True)
class Plan:
    """One request. `max_tokens`: as the client asked, which may be more than the model's length leaves."""

    work: Work
    model: str
    max_tokens: int
    stream: bool


def plan_message(body: Mapping[str, Any], card: ModelCard, timeout_limit_s: float, *, betas: bool = False) -> Plan:
    """Parses a body of POST /v1/messages. Raises InvalidRequest or UnknownModel with the reason.

    `betas`: whether the client uses betas, so that fields which nobody here knows are ignored.
    """
    own, shared = FIELDS.split(body, MessagesRequest.model_fields, strict=not betas)
    request = parse_own(own, MessagesRequest, card)
    shared["max_new_tokens"] = min(request.max_tokens, card.max_model_len)
    shared["stop"] = request.stop_sequences
    work = shared_work({**shared, **_prompt(request, shared)}, card, timeout_limit_s, MAX_TEMPERATURE)
    return Plan(replace(work, shorten=True), request.model, request.max_tokens, request.stream)


def plan_count(body: Mapping[str, Any], card: ModelCard, timeout_limit_s: float) -> Work:
    """The work whose prompt is to be counted. Fields that no count depends on are ignored. Raises as above."""
    own, _ = FIELDS.split(body, CountRequest.model_fields, strict=False)
    request = parse_own(own, CountRequest, card)
    return shared_work({**_prompt(request, {}), "max_new_tokens": 1}, card, timeout_limit_s, MAX_TEMPERATURE)


def _prompt(request: Prompted, shared: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of POST /generate that the prompt and the form of the answer become."""
    if request.messages[-1].role == "assistant":
        raise InvalidRequest(
            "the last message is the assistant's; an answer cannot be begun for this model, end with a user's message",
            param=f"messages.{len(request.messages) - 1}.role",
        )
    system = [{"role": "system", "content": request.system}] if request.system else []
    made: dict[str, Any] = {"messages": [*system, *(message.model_dump() for message in request.messages)]}
    form = (request.output_config and request.output_config.format) or request.output_format
    if form is None:
        return made
    if shared.get("response_format") is not None:
        raise InvalidRequest(
            "output_config.format and response_format are given, allowed is one of them", param="response_format"
        )
    return made | {"response_format": {"type": "json_schema", "json_schema": {"schema": form.schema_}}}
