"""Builds completions and chat completions, whole or as events, in OpenAI's shape with additional fields.

Every choice also has `token_ids`, and at its end the `stats` of POST /generate with its finish reason, mode and seed.
`trace` is added on request. A token's log-probability is that of the step that fixed it, at the request's temperature:
the backbone's, or MRP's if MRP revealed the token (mode `direct`). A time-out has OpenAI's finish reason `length`.
Events are unnamed, then `[DONE]`. OpenAI's client raises an event with an `error`, after which no `[DONE]` follows.
"""

import asyncio
import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from itertools import accumulate
from typing import ClassVar, Final, Generic, TypeVar

from pydantic_core import to_json

from service.api.answers import decoded_of, traced, usage_of
from service.api.driver import ResponseBuilder
from service.api.errors import OPENAI_NAMES, openai_error
from service.api.openai import protocol
from service.api.protocol import Json
from service.errors import MrpServeError
from service.messages.wire import Answer, Chunk, Ending, Progress, ReplicaRequest
from service.text import tools
from service.text.token_text import TokenText, TopLogprob

DONE = b"data: [DONE]\n\n"
_FINGERPRINT: Final = f"mrp-serve-{version('mrp-serve')}"

_Choice = TypeVar("_Choice", protocol.TextChoice, protocol.MessageChoice)


class OpenAiBuilder(ResponseBuilder, Generic[_Choice]):
    """The common part of both routes. `requests`: one per choice."""

    CLIENT_NAMES = OPENAI_NAMES
    _ID_PREFIX: ClassVar[str]
    _OBJECT: ClassVar[str]
    _FRAME_OBJECT: ClassVar[str]

    def __init__(
        self,
        requests: Sequence[ReplicaRequest],
        model: str,
        body: protocol.OpenAiRequest,
        answer_format: tools.AnswerFormat,
    ) -> None:
        """`answer_format`: the format of the model's text."""
        super().__init__(requests, stream=body.stream)
        self._body, self._format = body, answer_format
        self._parsers = [tools.OutputParser(answer_format) for _ in requests]
        self._written = [0] * len(requests)  # where the next token of each choice begins in its text
        self._endings: dict[int, Ending] = {}
        name = self._ID_PREFIX + requests[0].request_id
        self._head: protocol.CompletionHead = {
            "id": name,
            "created": int(time.time()),
            "model": model,
            "system_fingerprint": _FINGERPRINT,
            "service_tier": "default",
        }

    @abstractmethod
    def _choice(self, index: int, read: tools.ParsedOutput, end: protocol.WholeChoice) -> _Choice: ...

    @abstractmethod
    def _first_content(self, index: int) -> Json | None:
        """The content of a choice's first frame. None if there is none before its text."""

    @abstractmethod
    def _content(self, event: tools.OutputEvent) -> Json | None:
        """The content of a frame with a part of the answer. None if an event has none."""

    @abstractmethod
    def _empty_content(self) -> Json: ...

    @abstractmethod
    def _logprobs(self, token_texts: Sequence[TokenText], logprobs: Sequence[float], offsets: Sequence[int]) -> Json:
        """The log-probabilities of tokens. `offsets`: where each begins."""

    async def full_response(self, answers: Sequence[Answer]) -> Json:
        """The whole answer. Lets other tasks run after each choice: log-probabilities are long."""
        choices = list[_Choice]()
        for index, answer in enumerate(answers):
            self._endings[index] = answer.ending
            read = tools.parse_output(self._format, answer.text)
            end = self._end(index, answer.ending, read.called)
            choices.append(self._choice(index, read, {**self._tokens(index, answer), **end}))
            await asyncio.sleep(0)
        return {**self._head, "object": self._OBJECT, "choices": choices, "usage": self._usage()}

    def _end(self, index: int, ending: Ending, called: bool) -> protocol.ChoiceEnd:
        """OpenAI has no finish reason for a time-out; `length` also means an answer cut off."""
        stopped: protocol.FinishReasonName = "tool_calls" if called else "stop"
        finish_reason = stopped if ending.finish_reason == "stop" else "length"
        return {"finish_reason": finish_reason, **decoded_of(self.requests[index], ending)}

    def start(self, index: int, first: Progress | Chunk | Ending) -> bytes:
        content = self._first_content(index)
        return b"" if content is None else self._frame(index, content)

    def chunk(self, index: int, chunk: Chunk) -> bytes:
        """The frames of one block, one at least. The first has the block's tokens."""
        parts = self._contents(self._parsers[index].push(chunk.text))
        if not parts:
            plain = self._format.plain
            parts = self._contents([tools.ContentDelta("")]) if plain else [self._empty_content()]
        events = self._frame(index, parts[0], self._tokens(index, chunk))
        return events + b"".join([self._frame(index, part) for part in parts[1:]]) if len(parts) > 1 else events

    def end(self, index: int, ending: Ending) -> bytes:
        self._endings[index] = ending
        parser = self._parsers[index]
        rest: list[bytes] = [self._frame(index, part) for part in self._contents(parser.finish())]
        end = self._end(index, ending, parser.called)
        return b"".join([*rest, self._frame(index, self._empty_content(), end)])

    def finish(self) -> bytes:
        if not self._body.include_usage:
            return DONE
        return _data({**self._head, "object": self._FRAME_OBJECT, "choices": [], "usage": self._usage()}) + DONE

    def error(self, error: MrpServeError, request_id: str) -> bytes:
        return _data(openai_error(error, request_id))

    def _contents(self, events: Sequence[tools.OutputEvent]) -> list[Json]:
        return [content for event in events if (content := self._content(event)) is not None]

    def _frame(self, index: int, content: Json, extras: Mapping[str, object] | None = None) -> bytes:
        choice = {"index": index, **content, "logprobs": None, "finish_reason": None, **(extras or {})}
        usage = {"usage": None} if self._body.include_usage else {}
        return _data({**self._head, "object": self._FRAME_OBJECT, "choices": [choice], **usage})

    def _tokens(self, index: int, part: Answer | Chunk) -> protocol.ChoiceTokens:
        logprobs = None
        if self._body.alternatives is not None:
            lengths = (len(piece.delta) for piece in part.token_texts)
            *offsets, self._written[index] = accumulate(lengths, initial=self._written[index])
            logprobs = self._logprobs(part.token_texts, [token.logprob for token in part.step_map], offsets)
        return {"logprobs": logprobs, "token_ids": part.token_ids, **traced(self.requests[index], part)}

    def _usage(self) -> protocol.OpenAiUsage:
        """The token counts. A prompt counts once, however many answers it gets."""
        firsts = [ending for index, ending in self._endings.items() if index % self._body.n == 0]
        prompts = sum(ending.prompt_tokens for ending in firsts)
        completions = sum(ending.completion_tokens for ending in self._endings.values())
        return {
            **usage_of(prompts, completions),
            "prompt_tokens_details": {"cached_tokens": sum(ending.stats.cached_tokens for ending in firsts)},
        }


class CompletionBuilder(OpenAiBuilder[protocol.TextChoice]):
    """Builds the answer to one POST /v1/completions."""

    _ID_PREFIX, _OBJECT, _FRAME_OBJECT = "cmpl-", "text_completion", "text_completion"

    def __init__(self, requests: Sequence[ReplicaRequest], model: str, body: protocol.CompletionRequest) -> None:
        super().__init__(requests, model, body, tools.AnswerFormat())
        self._echoes = body.echo  # whether the prompt stands before a choice
        self._written = [
            len(request.text or "") for request in requests
        ]  # as OpenAI counts: from the prompt's beginning

    def _choice(self, index: int, read: tools.ParsedOutput, end: protocol.WholeChoice) -> protocol.TextChoice:
        return {"index": index, "text": self._echo(index) + read.content, **end}

    def _first_content(self, index: int) -> Json | None:
        return {"text": echo} if (echo := self._echo(index)) else None

    def _echo(self, index: int) -> str:
        return (self.requests[index].text or "") if self._echoes else ""

    def _content(self, event: tools.OutputEvent) -> Json | None:
        return {"text": event.text} if isinstance(event, tools.ContentDelta) else None

    def _empty_content(self) -> Json:
        return {"text": ""}

    def _logprobs(self, token_texts: Sequence[TokenText], logprobs: Sequence[float], offsets: Sequence[int]) -> Json:
        likeliest = map(_by_name, token_texts, logprobs)
        return {
            "tokens": [piece.text for piece in token_texts],
            "token_logprobs": logprobs,
            "top_logprobs": [*likeliest] if self._body.alternatives else None,
            "text_offset": offsets,
        }


class ChatBuilder(OpenAiBuilder[protocol.MessageChoice]):
    """Builds the answer to one POST /v1/chat/completions."""

    _ID_PREFIX, _OBJECT, _FRAME_OBJECT = "chatcmpl-", "chat.completion", "chat.completion.chunk"

    def _choice(self, index: int, read: tools.ParsedOutput, end: protocol.WholeChoice) -> protocol.MessageChoice:
        message: protocol.AssistantMessage = {"role": "assistant", "content": read.content, "refusal": None}
        if self._format.thinking != "no":
            message["reasoning_content"] = read.reasoning or None
        if read.calls:
            message["content"] = read.content or None
            message["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in read.calls
            ]
        return {"index": index, "message": message, **end}

    def _first_content(self, index: int) -> Json:
        """The role of the message. Its content may be none, if the message can have calls."""
        return {"delta": {"role": "assistant", "content": None if self._format.format else ""}}

    def _content(self, event: tools.OutputEvent) -> Json | None:
        match event:
            case tools.ContentDelta(text):
                return {"delta": {"content": text}}
            case tools.ReasoningDelta(text):
                return {"delta": {"reasoning_content": text}}
            case tools.ToolCallStart(index, call, name):
                opened = {"id": call, "type": "function", "function": {"name": name, "arguments": ""}}
                return {"delta": {"tool_calls": [{"index": index, **opened}]}}
            case tools.ToolCallDelta(index, text):
                return {"delta": {"tool_calls": [{"index": index, "function": {"arguments": text}}]}}
            case _:
                return None

    def _empty_content(self) -> Json:
        return {"delta": {}}

    def _logprobs(self, token_texts: Sequence[TokenText], logprobs: Sequence[float], offsets: Sequence[int]) -> Json:
        content = []
        for piece, logprob in zip(token_texts, logprobs, strict=True):
            chosen = _record(piece, logprob)
            likeliest = [_record(other, min(0.0, other.logprob)) for other in piece.top_logprobs]
            content.append({**chosen, "top_logprobs": (likeliest or [chosen]) if self._body.alternatives else []})
        return {"content": content, "refusal": None}


def _record(token: TokenText | TopLogprob, logprob: float) -> Json:
    return {"token": token.text, "logprob": logprob, "bytes": None if token.data is None else list(token.data)}


def _by_name(piece: TokenText, logprob: float) -> dict[str, float]:
    """Text -> log-probability of the likeliest tokens and of the chosen one. Of two with one text, the likelier."""
    logprobs = {other.text: min(0.0, other.logprob) for other in reversed(piece.top_logprobs)}
    return {**dict(reversed(logprobs.items())), piece.text: logprob}


def _data(body: Mapping[str, object]) -> bytes:
    return b"data: %b\n\n" % to_json(body)
