"""The differences between the answers of the two routes: the names of objects and the form of one choice.

`answers.py` writes what is common: ids, usage, token ids, statistics.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from service.gateway.openai.logprobs import TokenLogprob
from service.text.tools import (
    AnswerFormat,
    ContentDelta,
    OutputEvent,
    ParsedOutput,
    ReasoningDelta,
    ToolCallDelta,
    ToolCallStart,
)


class Dialect(Protocol):
    """How a route writes a choice."""

    @property
    def id_prefix(self) -> str:
        """The beginning of every answer's id."""

    @property
    def whole(self) -> str:
        """The value of `object` of a whole answer."""

    @property
    def frame(self) -> str:
        """The value of `object` of a frame."""

    def answer(self, read: ParsedOutput, echo: str, reading: AnswerFormat) -> dict[str, Any]:
        """A whole choice."""

    def opening(self, echo: str, reading: AnswerFormat) -> dict[str, Any] | None:
        """The first frame of a choice, if there is one before its text."""

    def piece(self, event: OutputEvent) -> dict[str, Any] | None:
        """A frame with a part of the answer. None if an event has none."""

    def closing(self) -> dict[str, Any]:
        """The last frame of a choice."""

    def logprobs(self, tokens: Sequence[TokenLogprob], alternatives: int) -> dict[str, Any]:
        """The log-probabilities of tokens, and of `alternatives` of the likeliest at each place."""


class CompletionDialect:
    """POST /v1/completions."""

    id_prefix = "cmpl-"
    whole = frame = "text_completion"

    def answer(self, read: ParsedOutput, echo: str, reading: AnswerFormat) -> dict[str, Any]:  # noqa: ARG002
        """The text."""
        return {"text": echo + read.content}

    def opening(self, echo: str, reading: AnswerFormat) -> dict[str, Any] | None:  # noqa: ARG002
        """The prompt, if the request has `echo`."""
        return {"text": echo} if echo else None

    def piece(self, event: OutputEvent) -> dict[str, Any] | None:
        """The text."""
        return {"text": event.text} if isinstance(event, ContentDelta) else None

    def closing(self) -> dict[str, Any]:
        """No text."""
        return {"text": ""}

    def logprobs(self, tokens: Sequence[TokenLogprob], alternatives: int) -> dict[str, Any]:
        """One list per kind of value."""
        return {
            "tokens": [token.token for token in tokens],
            "token_logprobs": [token.logprob for token in tokens],
            "top_logprobs": [_by_name(token) for token in tokens] if alternatives else None,
            "text_offset": [token.offset for token in tokens],
        }


class ChatDialect:
    """POST /v1/chat/completions."""

    id_prefix = "chatcmpl-"
    whole, frame = "chat.completion", "chat.completion.chunk"

    def answer(self, read: ParsedOutput, echo: str, reading: AnswerFormat) -> dict[str, Any]:  # noqa: ARG002
        """The assistant's message. A chat repeats no prompt."""
        message: dict[str, Any] = {"role": "assistant", "content": read.content, "refusal": None}
        if reading.thinking != "no":
            message["reasoning_content"] = read.thought or None
        if read.calls:
            message["content"] = read.content or None
            message["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in read.calls
            ]
        return {"message": message}

    def opening(self, echo: str, reading: AnswerFormat) -> dict[str, Any] | None:  # noqa: ARG002
        """The role of the message. Its content may be none, if the message can have calls."""
        return {"delta": {"role": "assistant", "content": None if reading.format else ""}}

    def piece(self, event: OutputEvent) -> dict[str, Any] | None:
        """A delta of the message."""
        match event:
            case ContentDelta(text):
                return {"delta": {"content": text}}
            case ReasoningDelta(text):
                return {"delta": {"reasoning_content": text}}
            case ToolCallStart(index, call, name):
                begun = {"id": call, "type": "function", "function": {"name": name, "arguments": ""}}
                return {"delta": {"tool_calls": [{"index": index, **begun}]}}
            case ToolCallDelta(index, text):
                return {"delta": {"tool_calls": [{"index": index, "function": {"arguments": text}}]}}
            case _:
                return None

    def closing(self) -> dict[str, Any]:
        """An empty delta."""
        return {"delta": {}}

    def logprobs(self, tokens: Sequence[TokenLogprob], alternatives: int) -> dict[str, Any]:
        """One object per token."""
        content = []
        for token in tokens:
            own = _record(token.token, token.data, token.logprob)
            likeliest = [_record(one.text, one.data, min(0.0, one.logprob)) for one in token.likeliest]
            content.append({**own, "top_logprobs": (likeliest or [own]) if alternatives else []})
        return {"content": content, "refusal": None}


def _record(token: str, data: bytes | None, logprob: float) -> dict[str, Any]:
    return {"token": token, "logprob": logprob, "bytes": None if data is None else list(data)}


def _by_name(token: TokenLogprob) -> dict[str, float]:
    """Name -> log-probability: of the likeliest tokens, and of the chosen one. Of two of one name, the likelier."""
    named = {one.text: min(0.0, one.logprob) for one in reversed(token.likeliest)}
    return {**dict(reversed(named.items())), token.token: token.logprob}


COMPLETION = CompletionDialect()
CHAT = ChatDialect()
