"""Whole responses and the events of streams, in OpenAI's shape with `stats`, and `trace` on request."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from service.gateway.http.answers import decoded_json
from service.gateway.openai.responses.convert import Plan
from service.gateway.openai.responses.output import Json, Output
from service.wire import Answer, Chunk, Ending


class Writer:
    """Writes the answer to one request. An event of a stream is an object with its `type`."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._output = Output(plan.reading)
        self._trace: list[Mapping[str, Any]] = []
        self._created, self._events = float(int(time.time())), 0

    def response(self, answer: Answer) -> Json:
        """The whole response."""
        self._trace.extend(answer.trace)
        for _ in (*self._output.push(answer.text), *self._output.finish(whole=_whole(answer.ending))):
            pass  # the items are what counts
        return self._ended(answer.ending)

    def opening(self) -> Iterator[Json]:
        """The events before the output."""
        begun = self._response("in_progress")
        return self._numbered({"type": f"response.{kind}", "response": begun} for kind in ("created", "in_progress"))

    def piece(self, chunk: Chunk) -> Iterator[Json]:
        """The events of one block of tokens."""
        self._trace.extend(chunk.trace)
        return self._numbered(self._output.push(chunk.text))

    def closing(self, ending: Ending) -> Iterator[Json]:
        """The last events."""
        yield from self._numbered(self._output.finish(whole=_whole(ending)))
        response = self._ended(ending)
        yield from self._numbered([{"type": f"response.{response['status']}", "response": response}])

    def failed(self, error: Mapping[str, Any]) -> Json:
        """The event of an error that ends the stream. Its `error` makes OpenAI's client raise it."""
        told = {name: error["error"].get(name) for name in ("code", "message", "param")}
        return next(self._numbered([{"type": "error", **told, **error}]))

    def _numbered(self, events: Iterable[Json]) -> Iterator[Json]:
        for event in events:
            yield {**event, "sequence_number": self._events}
            self._events += 1

    def _ended(self, ending: Ending) -> Json:
        work = self._plan.work
        whole = _whole(ending)
        response = self._response("completed" if whole else "incomplete") | {
            "incomplete_details": None if whole else {"reason": "max_output_tokens"},
            "output": self._output.items,
            "usage": _usage(ending),
            "stats": decoded_json(ending, work),
        }
        if work.return_trace:
            response["trace"] = self._trace
        return response if work.constraint is None else response | {"constraint_met": ending.constraint_met}

    def _response(self, status: str) -> Json:
        work = self._plan.work
        asked = self._plan.request.model_dump(mode="json", by_alias=True)
        return {
            "id": f"resp_{work.request_id}",
            "object": "response",
            "created_at": self._created,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "model": asked["model"],
            "output": [],
            "instructions": asked["instructions"],
            "max_output_tokens": work.max_new_tokens,
            "metadata": asked["metadata"],
            "parallel_tool_calls": asked["parallel_tool_calls"],
            "previous_response_id": None,
            "reasoning": asked["reasoning"],
            "store": False,
            "temperature": work.sampling.temperature,
            "text": asked["text"] if asked["text"] and asked["text"]["format"] else {"format": {"type": "text"}},
            "tool_choice": asked["tool_choice"],
            "tools": asked["tools"],
            "top_p": work.sampling.top_p,
            "truncation": "disabled",
            "usage": None,
        }


def _whole(ending: Ending) -> bool:
    """Whether the answer ended by itself. A time-out, which OpenAI does not know, is an answer that was cut."""
    return ending.finish_reason == "stop"


def _usage(ending: Ending) -> Json:
    return {
        "input_tokens": ending.prompt_tokens,
        "input_tokens_details": {"cached_tokens": ending.stats.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": ending.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": ending.prompt_tokens + ending.completion_tokens,
    }
