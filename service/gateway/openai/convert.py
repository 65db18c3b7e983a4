"""Parses an OpenAI body to a `ParsedRequest`: one `Work` per choice, and the form of the answer.

The validation of POST /generate parses the fields that both APIs share.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from msgspec import structs

from service.engine.request import MAX_SEED
from service.errors import InvalidRequest
from service.gateway.http.tools import with_tools
from service.gateway.http.validation import parse_own, shared_work
from service.gateway.openai.fields import FIELDS
from service.gateway.openai.messages import for_template
from service.gateway.openai.schemas import (
    MAX_CHOICES,
    MAX_TEMPERATURE,
    ChatRequest,
    CompletionRequest,
    OpenAiRequest,
    Prompt,
)
from service.gateway.openai.tools import think, tool_use
from service.text.tools import AnswerFormat
from service.wire import ModelCard, Work

#: OpenAI's default for completions; chats have the default of POST /generate
_COMPLETION_TOKENS = 16

#: a chat in the place of the request's own, whose messages POST /generate does not know
_ANY_CHAT = [{"role": "user", "content": ""}]

_Request = TypeVar("_Request", bound=OpenAiRequest)


@dataclass(frozen=True, slots=True)
class Choice:
    """One of the answers to a request: the work for a replica. `echo`: the prompt's text, if it is to be repeated."""

    index: int
    work: Work
    echo: str = ""


@dataclass(frozen=True, slots=True)
class ParsedRequest:
    """One OpenAI request. `n`: choices per prompt. `alternatives`: top log-probabilities per token, None for none.

    `reading`: how the text of answers is read.
    """

    choices: tuple[Choice, ...]
    model: str
    n: int
    stream: bool
    include_usage: bool
    alternatives: int | None
    return_trace: bool
    reading: AnswerFormat

    def with_works(self, works: Sequence[Work]) -> ParsedRequest:
        """A copy of the request in which `works` replace the works of the choices."""
        choices = (replace(choice, work=work) for choice, work in zip(self.choices, works, strict=True))
        return replace(self, choices=tuple(choices))


def plan_completion(body: Mapping[str, Any], card: ModelCard, timeout_limit_s: float) -> ParsedRequest:
    """Parses a body of POST /v1/completions. Raises InvalidRequest or UnknownModel with the reason."""
    body = _without_best_of(body)
    request, shared = _parse(body, CompletionRequest, card)
    _check_completion(request)
    shared["max_new_tokens"] = request.max_tokens or _COMPLETION_TOKENS
    base = shared_work({**shared, **_prompt(request.prompt[0])}, card, timeout_limit_s, MAX_TEMPERATURE)
    works = [_with_prompt(base, prompt) for prompt in request.prompt]
    echoes = [prompt if request.echo and isinstance(prompt, str) else "" for prompt in request.prompt]
    return _plan(request, works, echoes, request.logprobs)


def plan_chat(body: Mapping[str, Any], card: ModelCard, timeout_limit_s: float) -> ParsedRequest:
    """Parses a body of POST /v1/chat/completions. Raises InvalidRequest or UnknownModel with the reason."""
    request, shared = _parse(body, ChatRequest, card)
    limits = {request.max_tokens, request.max_completion_tokens} - {None}
    if len(limits) > 1:
        raise InvalidRequest(
            f"max_tokens is {request.max_tokens} and max_completion_tokens {request.max_completion_tokens}; "
            "they mean the same, give one of them",
            param="max_tokens",
        )
    if request.top_logprobs and not request.logprobs:
        raise InvalidRequest(f"top_logprobs is {request.top_logprobs}, which needs logprobs true", param="top_logprobs")
    if limits:
        shared["max_new_tokens"] = limits.pop()
    work = shared_work({**shared, "messages": _ANY_CHAT}, card, timeout_limit_s, MAX_TEMPERATURE)
    work = structs.replace(work, messages=for_template(request.messages))
    wanted, param = think(request.reasoning_effort, request.chat_template_kwargs)
    work, reading = with_tools(work, card, tool_use(request), think=wanted, think_param=param)
    plan = _plan(request, [work], [""], (request.top_logprobs or 0) if request.logprobs else None)
    return replace(plan, reading=reading)


def _parse(body: Mapping[str, Any], schema: type[_Request], card: ModelCard) -> tuple[_Request, dict[str, Any]]:
    """OpenAI's own fields as a typed request, and the other fields, which are not parsed yet."""
    own, shared = FIELDS.split(body, schema.model_fields)
    request = parse_own(own, schema, card)
    if request.stream_options and not request.stream:
        raise InvalidRequest("stream_options are given, which need stream true", param="stream_options")
    return request, shared


def _without_best_of(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """The body without `best_of` if it equals `n`, since it then changes nothing."""
    same = body.get("best_of") is not None and body["best_of"] == body.get("n")
    return {name: value for name, value in body.items() if name != "best_of"} if same else body


def _check_completion(request: CompletionRequest) -> None:
    count = request.n * len(request.prompt)
    if count > MAX_CHOICES:
        raise InvalidRequest(
            f"{len(request.prompt)} prompts with n {request.n} are {count} answers, allowed are {MAX_CHOICES}",
            param="n",
        )
    if request.echo and not all(isinstance(prompt, str) for prompt in request.prompt):
        raise InvalidRequest("echo is true, which needs prompts that are texts", param="echo")
    if request.echo and request.logprobs is not None:
        raise InvalidRequest("echo is true with logprobs; a prompt's tokens have no log-probabilities", param="echo")


def _prompt(prompt: Prompt) -> dict[str, Any]:
    return {"prompt": prompt} if isinstance(prompt, str) else {"prompt_token_ids": list(prompt)}


def _with_prompt(work: Work, prompt: Prompt) -> Work:
    if isinstance(prompt, str):
        return structs.replace(work, text=prompt, token_ids=None)
    return structs.replace(work, text=None, token_ids=prompt)


def _plan(request: OpenAiRequest, works: list[Work], echoes: list[str], alternatives: int | None) -> ParsedRequest:
    """`n` choices of every work. Choice i has the request's seed + i."""
    base = works[0]
    asked = [(work, echo) for work, echo in zip(works, echoes, strict=True) for _ in range(request.n)]
    choices = (Choice(index, _nth(work, index, alternatives), echo) for index, (work, echo) in enumerate(asked))
    usage = bool((request.stream_options or {}).get("include_usage"))
    return ParsedRequest(
        tuple(choices), request.model, request.n, request.stream, usage, alternatives, base.return_trace, AnswerFormat()
    )


def _nth(work: Work, index: int, alternatives: int | None) -> Work:
    named = alternatives is not None
    return structs.replace(
        work,
        request_id=secrets.token_hex(12),
        sampling=structs.replace(work.sampling, seed=(work.sampling.seed + index) % (MAX_SEED + 1)),
        return_trace=named or work.return_trace,
        return_pieces=named,
        top_logprobs=alternatives or 0,
    )
