"""Builds a message, whole or as events, in Anthropic's shape with `stats`, and `trace` on request.

In a stream both are fields of the event `message_delta`. Whole messages are made of the same events as streams.
"""

import secrets
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from service.api.answers import decoded_of
from service.api.anthropic import protocol
from service.api.content import past_arguments
from service.api.driver import ResponseBuilder
from service.api.errors import anthropic_error, in_anthropic_terms
from service.api.protocol import Json
from service.api.streams import frame
from service.constraints.json_text import finite
from service.errors import MrpServeError
from service.messages.wire import Answer, Chunk, Ending, Progress, ReplicaRequest, TraceStep
from service.text import tools

#: kind of a block -> the field that pieces extend, the kind of a piece, its field
_PIECES = {
    "text": ("text", "text_delta", "text"),
    "thinking": ("thinking", "thinking_delta", "thinking"),
    "tool_use": ("input", "input_json_delta", "partial_json"),
}


class MessageBuilder(ResponseBuilder):
    """Builds the answer to one request. An event of a stream is an object with its `type`."""

    def __init__(
        self,
        replica_request: ReplicaRequest,
        model: str,
        request: protocol.MessagesRequest,
        answer_format: tools.AnswerFormat,
    ) -> None:
        super().__init__([replica_request], stream=request.stream)
        self._request = replica_request
        self._max_tokens = request.max_tokens  # may be more than the model's length leaves
        self._content = ContentBuilder(answer_format)
        self._trace: list[TraceStep] = []
        name = f"msg_{replica_request.request_id}"
        self._head: protocol.MessageHead = {"id": name, "type": "message", "role": "assistant", "model": model}

    async def full_response(self, answers: Sequence[Answer]) -> protocol.MessageAnswer:
        [answer] = answers
        content = blocks_of([*self._content.push(answer.text), *self._content.finish()])
        self._trace.extend(answer.trace)
        ending = answer.ending
        return {
            **self._head,
            "content": content,
            **self._stop(ending),
            "usage": _usage(ending),
            **self._extras(ending),
        }

    def start(self, index: int, first: Progress | Chunk | Ending) -> bytes:
        if isinstance(first, Progress):  # this route asks for no steps
            return b""
        usage = _counts(first.prompt_tokens, first.stats.cached_tokens, 0)
        empty: Json = {"content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
        return _written([{"type": "message_start", "message": {**self._head, **empty}}, {"type": "ping"}])

    def chunk(self, index: int, chunk: Chunk) -> bytes:
        self._trace.extend(chunk.trace)
        return _written(self._content.push(chunk.text))

    def end(self, index: int, ending: Ending) -> bytes:
        rest = _written(self._content.finish())
        fields = {"delta": self._stop(ending), "usage": _usage(ending), **self._extras(ending)}
        return rest + _written([{"type": "message_delta", **fields}, {"type": "message_stop"}])

    def error(self, error: MrpServeError, request_id: str) -> bytes:
        return frame("error", anthropic_error(error, request_id))

    def with_client_names(self, error: MrpServeError, index: int | None) -> MrpServeError:
        return in_anthropic_terms(error)

    def _stop(self, ending: Ending) -> protocol.MessageStop:
        return {"stop_reason": self._reason(ending), "stop_sequence": ending.stop_text}

    def _reason(self, ending: Ending) -> protocol.StopReason:
        """Anthropic's stop reason. It has none for a time-out; `max_tokens` also means an answer cut off."""
        if ending.finish_reason == "stop":
            if ending.stop_text is not None:
                return "stop_sequence"
            return "tool_use" if self._content.parser.called else "end_turn"
        if ending.finish_reason == "length" and ending.completion_tokens < self._max_tokens:
            return "model_context_window_exceeded"
        return "max_tokens"

    def _extras(self, ending: Ending) -> protocol.MessageExtras:
        extras: protocol.MessageExtras = {**decoded_of(self._request, ending), "trace": self._trace}
        if not self._request.return_trace:
            del extras["trace"]
        return extras


class ContentBuilder:
    """The blocks of one message: text, thinking, calls of tools.

    An `OutputParser` tells the parts of an answer. A new block begins where the kind of the parts changes.
    """

    def __init__(self, answer_format: tools.AnswerFormat) -> None:
        self.parser = tools.OutputParser(answer_format, lambda: f"toolu_{secrets.token_hex(12)}")
        self._kind: str | None = None
        self._count = 0

    def push(self, text: str) -> Iterator[Json]:
        return self._events(self.parser.push(text))

    def finish(self) -> Iterator[Json]:
        yield from self._events(self.parser.finish())
        yield from self._end()

    def _events(self, events: Iterable[tools.OutputEvent]) -> Iterator[Json]:
        for event in events:
            match event:
                case tools.ContentDelta(text):
                    yield from self._piece("text", text, {"text": ""})
                case tools.ReasoningDelta(text):
                    yield from self._piece("thinking", text, {"thinking": "", "signature": ""})
                case tools.ToolCallStart(_, call, name):
                    yield from self._end()
                    yield self._begin("tool_use", {"id": call, "name": name, "input": {}})
                case tools.ToolCallDelta(_, text):
                    yield self._delta("tool_use", text)

    def _piece(self, kind: str, text: str, empty: Json) -> Iterator[Json]:
        if self._kind != kind:
            yield from self._end()
            yield self._begin(kind, empty)
        yield self._delta(kind, text)

    def _begin(self, kind: str, block: Json) -> Json:
        self._kind = kind
        return {"type": "content_block_start", "index": self._count, "content_block": {"type": kind, **block}}

    def _delta(self, kind: str, text: str) -> Json:
        _, piece, field = _PIECES[kind]
        return {"type": "content_block_delta", "index": self._count, "delta": {"type": piece, field: text}}

    def _end(self) -> Iterator[Json]:
        if self._kind is not None:
            yield {"type": "content_block_stop", "index": self._count}
            self._kind, self._count = None, self._count + 1


def blocks_of(events: Iterable[Json]) -> list[protocol.ContentBlock]:
    """The blocks that events make. The input of a call that was cut has its complete part."""
    blocks: list[Any] = []
    texts: list[str] = []
    for event in events:
        if event["type"] == "content_block_start":
            blocks.append(dict(event["content_block"]))
            texts.append("")
        elif event["type"] == "content_block_delta":
            texts[-1] += event["delta"][_PIECES[blocks[-1]["type"]][2]]
    for block, text in zip(blocks, texts, strict=True):
        field = _PIECES[block["type"]][0]
        block[field] = finite(past_arguments(text)) if field == "input" else text
    return blocks


def _usage(ending: Ending) -> protocol.MessageUsage:
    return _counts(ending.prompt_tokens, ending.stats.cached_tokens, ending.completion_tokens)


def _counts(prompt: int, cached: int, output: int) -> protocol.MessageUsage:
    """Anthropic counts the tokens that the cache had apart from the others."""
    return {
        "input_tokens": prompt - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": output,
    }


def _written(events: Iterable[Json]) -> bytes:
    return b"".join(frame(event["type"], event) for event in events)
