"""Whole messages and the events of streams, in Anthropic's shape with additional fields.

A message also has `stats`: those of POST /generate with its finish reason, mode and seed. `trace` is added on request.
In a stream they are fields of the event `message_delta`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from service.gateway.anthropic.blocks import Blocks, blocks_of
from service.gateway.anthropic.convert import Plan
from service.gateway.http.answers import decoded_json
from service.wire import Answer, Chunk, Ending

Json = dict[str, Any]


class Writer:
    """Writes the answer to one request. An event of a stream is an object with its `type`."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._id = f"msg_{plan.work.request_id}"
        self._blocks = Blocks(plan.reading)
        self._trace: list[Mapping[str, Any]] = []

    def message(self, answer: Answer) -> Json:
        """The whole message."""
        content = blocks_of([*self._blocks.push(answer.text), *self._blocks.finish()])
        self._trace.extend(answer.trace)
        ending = answer.ending
        return self._head() | {
            "content": content,
            **self._stop(ending),
            "usage": _usage(ending),
            **self._extras(ending),
        }

    def opening(self, first: Chunk | Ending) -> Iterator[Json]:
        """The events before the content."""
        usage = _counts(first.prompt_tokens, first.stats.cached_tokens) | {"output_tokens": 0}
        empty: Json = {"content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
        yield {"type": "message_start", "message": self._head() | empty}
        yield {"type": "ping"}

    def piece(self, chunk: Chunk) -> Iterator[Json]:
        """The events of one block of tokens."""
        self._trace.extend(chunk.trace)
        return self._blocks.push(chunk.text)

    def closing(self, ending: Ending) -> Iterator[Json]:
        """The last events."""
        yield from self._blocks.finish()
        yield {
            "type": "message_delta",
            "delta": self._stop(ending),
            "usage": _usage(ending),
            **self._extras(ending),
        }
        yield {"type": "message_stop"}

    def _head(self) -> Json:
        return {"id": self._id, "type": "message", "role": "assistant", "model": self._plan.model}

    def _stop(self, ending: Ending) -> Json:
        return {"stop_reason": self._reason(ending), "stop_sequence": ending.stop_text}

    def _reason(self, ending: Ending) -> str:
        """Anthropic's stop reason. It has none for a time-out; `max_tokens` also means an answer cut off."""
        if ending.finish_reason == "stop":
            if ending.stop_text is not None:
                return "stop_sequence"
            return "tool_use" if self._blocks.called else "end_turn"
        if ending.finish_reason == "length" and ending.completion_tokens < self._plan.max_tokens:
            return "model_context_window_exceeded"
        return "max_tokens"

    def _extras(self, ending: Ending) -> Json:
        work = self._plan.work
        shown: Json = {"stats": decoded_json(ending, work)}
        if work.return_trace:
            shown["trace"] = self._trace
        return shown if work.constraint is None else shown | {"constraint_met": ending.constraint_met}


def _usage(ending: Ending) -> Json:
    counts = _counts(ending.prompt_tokens, ending.stats.cached_tokens)
    return counts | {"output_tokens": ending.completion_tokens}


def _counts(prompt: int, cached: int) -> Json:
    """Anthropic counts the tokens that the cache had apart from the others."""
    return {"input_tokens": prompt - cached, "cache_creation_input_tokens": 0, "cache_read_input_tokens": cached}
