"""Parses Anthropic's bodies to a `Plan`: one `Work`, and the form of its answer.

The validation of POST /generate parses the fields that both APIs share.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from service.errors import InvalidRequest
from service.gateway.anthropic.fields import FIELDS
from service.gateway.anthropic.messages import for_template
from service.gateway.anthropic.schemas import MAX_TEMPERATURE, CountRequest, MessagesRequest, Prompted
from service.gateway.anthropic.tools import think, tool_use
from service.gateway.http.tools import with_tools
from service.gateway.http.validation import parse_own, shared_work
from service.text.tools import AnswerFormat
from service.wire import ModelCard, Work

#: stands for the messages until they are written for the chat template
_ANY_CHAT = [{"role": "user", "content": ""}]


@dataclass(frozen=True, slots=True)
class Plan:
    """One request. `max_tokens`: as the client asked, which may be more than the model's length leaves.

    `reading`: how its answer is read.
    """

    work: Work
    model: str
    max_tokens: int
    stream: bool
    reading: AnswerFormat


def plan_message(body: Mapping[str, Any], card: ModelCard, timeout_limit_s: float, *, betas: bool = False) -> Plan:
    """Parses a body of POST /v1/messages. Raises InvalidRequest or UnknownModel with the reason.

    `betas`: whether the client uses betas, so that fields which nobody here knows are ignored.
    """
    own, shared = FIELDS.split(body, MessagesRequest.model_fields, strict=not betas)
    request = parse_own(own, MessagesRequest, card)
    shared |= {"max_new_tokens": min(request.max_tokens, card.max_model_len), "stop": request.stop_sequences}
    shared |= _form(request, shared)
    work = shared_work({**shared, "messages": _ANY_CHAT}, card, timeout_limit_s, MAX_TEMPERATURE)
    work, reading = _prompted(replace(work, shorten=True), request, card)
    return Plan(work, request.model, request.max_tokens, request.stream, reading)


def plan_count(body: Mapping[str, Any], card: ModelCard, timeout_limit_s: float) -> Work:
    """The work whose prompt is to be counted. Raises as above. Fields that nobody here knows are ignored."""
    own, shared = FIELDS.split(body, CountRequest.model_fields, strict=False)
    request = parse_own(own, CountRequest, card)
    asked = {**shared, "messages": _ANY_CHAT, "max_new_tokens": 1}
    work = shared_work(asked, card, timeout_limit_s, MAX_TEMPERATURE)
    return _prompted(work, request, card)[0]


def _prompted(work: Work, request: Prompted, card: ModelCard) -> tuple[Work, AnswerFormat]:
    """The work with the request's messages and tools, and how its answer is read."""
    work = replace(work, messages=for_template(request.system, request.messages))
    return with_tools(work, card, tool_use(request.tools, request.tool_choice), think=think(request.thinking, card))


def _form(request: MessagesRequest, shared: Mapping[str, Any]) -> dict[str, Any]:
    """The form of the answer as POST /generate names it."""
    form = (request.output_config and request.output_config.format) or request.output_format
    if form is None:
        return {}
    if shared.get("response_format") is not None:
        raise InvalidRequest(
            "output_config.format and response_format are given, allowed is one of them", param="response_format"
        )
    return {"response_format": {"type": "json_schema", "json_schema": {"schema": form.schema_}}}
