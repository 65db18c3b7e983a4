"""Builds a response, whole or as typed events of the same items, in OpenAI's shape with `stats` and `trace`."""

import secrets
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final, Literal, cast

from service.api.answers import decoded_of
from service.api.driver import ResponseBuilder
from service.api.errors import openai_error
from service.api.openai.responses import protocol
from service.api.protocol import Json
from service.api.streams import frame
from service.errors import MrpServeError
from service.messages.wire import Answer, Chunk, Ending, Progress, ReplicaRequest, TraceStep
from service.text import tools

#: the request's fields that its response repeats
_ECHOED: Final = set(protocol.ResponseEcho.__annotations__)


class ResponsesBuilder(ResponseBuilder):
    """Builds the answer to one request. An event of a stream is an object with its `type`."""

    CLIENT_NAMES: ClassVar[Mapping[str, str]] = {"max_new_tokens": "max_output_tokens", "messages": "input"}

    def __init__(
        self,
        replica_request: ReplicaRequest,
        model: str,
        request: protocol.ResponsesRequest,
        answer_format: tools.AnswerFormat,
    ) -> None:
        super().__init__([replica_request], stream=request.stream)
        self._replica_request, self._request, self._model = replica_request, request, model
        self._output = OutputBuilder(answer_format)
        self._trace: list[TraceStep] = []
        self._created, self._events = float(int(time.time())), 0

    async def full_response(self, answers: Sequence[Answer]) -> protocol.ResponseObject:
        [answer] = answers
        self._trace.extend(answer.trace)
        for _ in (*self._output.push(answer.text), *self._output.finish(complete=_is_complete(answer.ending))):
            pass  # only the items count
        return self._ended(answer.ending)

    def start(self, index: int, first: Progress | Chunk | Ending) -> bytes:
        response = self._response("in_progress")
        kinds = ("response.created", "response.in_progress")
        return self._written({"type": kind, "response": response} for kind in kinds)

    def chunk(self, index: int, chunk: Chunk) -> bytes:
        self._trace.extend(chunk.trace)
        return self._written(self._output.push(chunk.text))

    def end(self, index: int, ending: Ending) -> bytes:
        events = self._written(self._output.finish(complete=_is_complete(ending)))
        response = self._ended(ending)
        return events + self._written([{"type": f"response.{response['status']}", "response": response}])

    def error(self, error: MrpServeError, request_id: str) -> bytes:
        """Its `error` makes OpenAI's client raise it."""
        body = openai_error(error, request_id)
        detail = body["error"]
        fields = {"code": detail["code"], "message": detail["message"], "param": detail["param"]}
        return self._written([{"type": "error", **fields, **body}])

    def _written(self, events: Iterable[Json]) -> bytes:
        frames = []
        for event in events:
            frames.append(frame(event["type"], {**event, "sequence_number": self._events}))
            self._events += 1
        return b"".join(frames)

    def _ended(self, ending: Ending) -> protocol.ResponseObject:
        complete = _is_complete(ending)
        response = self._response("completed" if complete else "incomplete")
        response["incomplete_details"] = None if complete else {"reason": "max_output_tokens"}
        response["output"] = self._output.items
        response["usage"] = _usage(ending)
        decoded = decoded_of(self._replica_request, ending)
        whole: protocol.ResponseObject = {**response, **decoded, "trace": self._trace}
        if not self._replica_request.return_trace:
            del whole["trace"]
        return whole

    def _response(self, status: protocol.ItemStatus) -> protocol.ResponseState:
        request = self._request.model_dump(mode="json", by_alias=True, include=_ECHOED)
        return {
            **cast(protocol.ResponseEcho, request),
            "id": f"resp_{self._replica_request.request_id}",
            "object": "response",
            "created_at": self._created,
            "completed_at": float(int(time.time())) if status == "completed" else None,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": None,
            "model": self._model,
            "output": [],
            "previous_response_id": None,
            "service_tier": "default",
            "store": False,
            "top_logprobs": 0,
            "max_tool_calls": None,
            "safety_identifier": None,
            "user": None,
            "truncation": "disabled",
            "usage": None,
        }


class OutputBuilder:
    """The output of one response: thinking, a message, calls of tools. `items`: the items that are done, in order.

    An `OutputParser` tells the parts of an answer. A new item begins where the kind of the parts changes.
    """

    def __init__(self, answer_format: tools.AnswerFormat) -> None:
        self._parser = tools.OutputParser(answer_format)
        self.items: list[protocol.OutputItem] = []
        self._item: protocol.OutputItem | None = None
        self._text = ""

    def push(self, text: str) -> Iterator[Json]:
        return self._events(self._parser.push(text))

    def finish(self, *, complete: bool) -> Iterator[Json]:
        """The last events. `complete`: False if a limit truncated the answer."""
        yield from self._events(self._parser.finish())
        yield from self._end("completed" if complete else "incomplete")

    def _events(self, events: Iterable[tools.OutputEvent]) -> Iterator[Json]:
        for event in events:
            match event:
                case tools.ContentDelta(text):
                    yield from self._piece("message", text)
                case tools.ReasoningDelta(text):
                    yield from self._piece("reasoning", text)
                case tools.ToolCallStart(_, call, name):
                    yield from self._begin(
                        {
                            "id": _new_id("fc"),
                            "type": "function_call",
                            "status": "in_progress",
                            "call_id": call,
                            "name": name,
                            "arguments": "",
                        }
                    )
                case tools.ToolCallDelta(_, text):
                    yield self._delta("response.function_call_arguments.delta", text)
                case tools.ToolCallEnd():
                    yield from self._end()

    def _piece(self, kind: Literal["message", "reasoning"], text: str) -> Iterator[Json]:
        if self._item is None or self._item["type"] != kind:
            yield from self._begin(_empty_item(kind))
            yield self._of_part("response.content_part.added", part=_part(kind, ""))
        name = "output_text" if kind == "message" else "reasoning_text"
        yield self._delta(f"response.{name}.delta", text)

    def _begin(self, item: protocol.OutputItem) -> Iterator[Json]:
        yield from self._end()
        self._item, self._text = item, ""
        yield self._event("response.output_item.added", item=item.copy())

    def _end(self, status: protocol.ItemStatus = "completed") -> Iterator[Json]:
        if (item := self._item) is None:
            return
        kind, text = item["type"], self._text
        if kind == "function_call":
            done = {"arguments": text, "name": item["name"], "item_id": item["id"]}
            yield self._event("response.function_call_arguments.done", **done)
            item["arguments"] = text
        else:
            part = _part(kind, text)
            name = "output_text" if kind == "message" else "reasoning_text"
            yield self._of_part(f"response.{name}.done", text=text, **_logprobs(kind))
            yield self._of_part("response.content_part.done", part=part)
            item["content"] = [part]
        item["status"] = status
        yield self._event("response.output_item.done", item=item.copy())
        self.items.append(item)
        self._item = None

    def _delta(self, kind: str, text: str) -> Json:
        self._text += text
        if self._item is not None and self._item["type"] == "function_call":
            return self._event(kind, item_id=self._item["id"], delta=text)
        return self._of_part(kind, delta=text, **_logprobs("message" if "output_text" in kind else ""))

    def _of_part(self, kind: str, **fields: Any) -> Json:
        return self._event(kind, item_id=self._item["id"] if self._item else "", content_index=0, **fields)

    def _event(self, kind: str, **fields: Any) -> Json:
        return {"type": kind, "output_index": len(self.items), **fields}


def _empty_item(kind: Literal["message", "reasoning"]) -> protocol.OutputItem:
    if kind == "message":
        return {"id": _new_id("msg"), "type": kind, "status": "in_progress", "role": "assistant", "content": []}
    return {"id": _new_id("rs"), "type": kind, "status": "in_progress", "summary": [], "content": []}


def _new_id(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(12)}"


def _part(kind: str, text: str) -> Json:
    if kind == "message":
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {"type": "reasoning_text", "text": text}


def _logprobs(kind: str) -> Json:
    return {"logprobs": []} if kind == "message" else {}


def _is_complete(ending: Ending) -> bool:
    """Whether no limit truncated the answer. A time-out, which OpenAI does not know, is such a limit."""
    return ending.finish_reason == "stop"


def _usage(ending: Ending) -> protocol.ResponseUsage:
    return {
        "input_tokens": ending.prompt_tokens,
        "input_tokens_details": {"cached_tokens": ending.stats.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": ending.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": ending.prompt_tokens + ending.completion_tokens,
    }
