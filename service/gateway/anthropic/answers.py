"""Whole messages and the events of streams, in Anthropic's shape with additional fields.

A message also has `stats`: those of POST /generate with its finish reason, mode and seed. `trace` is added on request.
In a stream they are fields of the event `message_delta`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from service.gateway.anthropic.convert import Plan
from service.gateway.http.answers import decoded_json
from service.wire import Answer, Chunk, Ending

Json = dict[str, Any]
Event = tuple[str, Json]


class Writer:
    """Writes the answer to one request."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._id = f"msg_{plan.work.request_id}"
        self._begun = False  # whether the block of text is
        self._trace: list[Mapping[str, Any]] = []

    def message(self, answer: Answer) -> Json:
        """The whole message."""
        content = [{"type": "text", "text": answer.text}] if answer.text else []
        self._trace.extend(answer.trace)
        ending = answer.ending
        return self._head() | {
            "content": content,
            **self._stop(ending),
            "usage": _usage(ending),
            **self._extras(ending),
        }

    def opening(self, first: Chunk | Ending) -> Iterator[Event]:
        """The events before the text."""
        usage = _counts(first.prompt_tokens, first.stats.cached_tokens) | {"output_tokens": 0}
        empty: Json = {"content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
        yield _event("message_start", message=self._head() | empty)
        yield _event("ping")

    def piece(self, chunk: Chunk) -> Iterator[Event]:
        """The events of one block."""
        self._trace.extend(chunk.trace)
        if not chunk.text:
            return
        if not self._begun:
            self._begun = True
            yield _event("content_block_start", index=0, content_block={"type": "text", "text": ""})
        yield _event("content_block_delta", index=0, delta={"type": "text_delta", "text": chunk.text})

    def closing(self, ending: Ending) -> Iterator[Event]:
        """The last events."""
        if self._begun:
            yield _event("content_block_stop", index=0)
        yield _event("message_delta", delta=self._stop(ending), usage=_usage(ending), **self._extras(ending))
        yield _event("message_stop")

    def _head(self) -> Json:
        return {"id": self._id, "type": "message", "role": "assistant", "model": self._plan.model}

    def _stop(self, ending: Ending) -> Json:
        return {"stop_reason": self._reason(ending), "stop_sequence": ending.stop_text}

    def _reason(self, ending: Ending) -> str:
        """Anthropic's stop reason. It has none for a time-out; `max_tokens` also means an answer cut off."""
        if ending.finish_reason == "stop":
            return "end_turn" if ending.stop_text is None else "stop_sequence"
        if ending.finish_reason == "length" and ending.completion_tokens < self._plan.max_tokens:
            return "model_context_window_exceeded"
        return "max_tokens"

    def _extras(self, ending: Ending) -> Json:
        work = self._plan.work
        shown: Json = {"stats": decoded_json(ending, work)}
        if work.return_trace:
            shown["trace"] = self._trace
        return shown if work.constraint is None else shown | {"constraint_met": ending.constraint_met}


def _event(kind: str, **fields: Any) -> Event:
    return kind, {"type": kind, **fields}


def _usage(ending: Ending) -> Json:
    counts = _counts(ending.prompt_tokens, ending.stats.cached_tokens)
    return counts | {"output_tokens": ending.completion_tokens}


def _counts(prompt: int, cached: int) -> Json:
    """Anthropic counts the tokens that the cache had apart from the others."""
    return {"input_tokens": prompt - cached, "cache_creation_input_tokens": 0, "cache_read_input_tokens": cached}
