"""What differs between the two routes' answers: the names of their objects and the form of one choice.

Everything around it (ids, usage, token ids, statistics) is in `answers.py`. Knows no request.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from service.gateway.openai.logprobs import TokenLogprob


class Dialect(Protocol):
    """How a route writes a choice."""

    @property
    def id_prefix(self) -> str:
        """What ids of answers begin with."""

    @property
    def whole(self) -> str:
        """The kind of object a whole answer is."""

    @property
    def frame(self) -> str:
        """The kind of object a frame of a stream is."""

    def answer(self, text: str) -> dict[str, Any]:
        """A whole choice."""

    def opening(self, echo: str) -> dict[str, Any] | None:
        """The first frame of a choice, if there is one before its text."""

    def piece(self, text: str) -> dict[str, Any]:
        """A frame with text."""

    def closing(self) -> dict[str, Any]:
        """The last frame of a choice."""

    def logprobs(self, tokens: Sequence[TokenLogprob], alternatives: int) -> dict[str, Any]:
        """Log-probabilities; one alternative is the token itself."""


class CompletionDialect:
    """POST /v1/completions."""

    id_prefix = "cmpl-"
    whole = frame = "text_completion"

    def answer(self, text: str) -> dict[str, Any]:
        """The text."""
        return {"text": text}

    def opening(self, echo: str) -> dict[str, Any] | None:
        """The prompt, if it is to be repeated."""
        return {"text": echo} if echo else None

    def piece(self, text: str) -> dict[str, Any]:
        """The text."""
        return {"text": text}

    def closing(self) -> dict[str, Any]:
        """No text."""
        return {"text": ""}

    def logprobs(self, tokens: Sequence[TokenLogprob], alternatives: int) -> dict[str, Any]:
        """Columns."""
        return {
            "tokens": [token.token for token in tokens],
            "token_logprobs": [token.logprob for token in tokens],
            "top_logprobs": [{token.token: token.logprob} for token in tokens] if alternatives else None,
            "text_offset": [token.offset for token in tokens],
        }


class ChatDialect:
    """POST /v1/chat/completions."""

    id_prefix = "chatcmpl-"
    whole, frame = "chat.completion", "chat.completion.chunk"

    def answer(self, text: str) -> dict[str, Any]:
        """The assistant's message."""
        return {"message": {"role": "assistant", "content": text, "refusal": None}}

    def opening(self, echo: str) -> dict[str, Any] | None:  # noqa: ARG002 - a chat repeats nothing
        """Whose message it is."""
        return {"delta": {"role": "assistant", "content": ""}}

    def piece(self, text: str) -> dict[str, Any]:
        """What the text adds to the message."""
        return {"delta": {"content": text}}

    def closing(self) -> dict[str, Any]:
        """Nothing added."""
        return {"delta": {}}

    def logprobs(self, tokens: Sequence[TokenLogprob], alternatives: int) -> dict[str, Any]:
        """A record a token."""
        records = [
            {"token": token.token, "logprob": token.logprob, "bytes": None if token.data is None else list(token.data)}
            for token in tokens
        ]
        return {
            "content": [{**record, "top_logprobs": [dict(record)] if alternatives else []} for record in records],
            "refusal": None,
        }


COMPLETION = CompletionDialect()
CHAT = ChatDialect()
