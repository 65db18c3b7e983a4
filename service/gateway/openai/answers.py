"""Whole answers and the frames of streams, in OpenAI's shape with additional fields.

Every choice also has `token_ids`, and at its end `stats`: those of POST /generate with its finish reason, mode and
seed. `trace` is added on request. A time-out has OpenAI's finish reason `length`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any

from service.gateway.http.answers import decoded_json
from service.gateway.openai.convert import Choice, ParsedRequest
from service.gateway.openai.dialect import Dialect
from service.gateway.openai.logprobs import token_logprobs
from service.text.tools import ContentDelta, OutputEvent, OutputParser, parse_output
from service.wire import Answer, Chunk, Ending

Json = dict[str, Any]


class Writer:
    """Writes the answers to one request in the dialect of its route."""

    def __init__(self, plan: ParsedRequest, dialect: Dialect) -> None:
        self._plan, self._dialect = plan, dialect
        self._readers = [OutputParser(plan.reading) for _ in plan.choices]
        self._written = [0] * len(plan.choices)  # characters of each choice's text that have log-probabilities
        name = dialect.id_prefix + plan.choices[0].work.request_id
        self._head = {"id": name, "created": int(time.time()), "model": plan.model}

    async def answer(self, answers: Sequence[Answer]) -> Json:
        """The whole answer. `answers`: one per choice. Lets others run after each: log-probabilities are long."""
        choices = list[Json]()
        for choice, answer in zip(self._plan.choices, answers, strict=True):
            choices.append(self._choice(choice, answer))
            await asyncio.sleep(0)
        endings = {choice.index: answer.ending for choice, answer in zip(self._plan.choices, answers, strict=True)}
        return {**self._head, "object": self._dialect.whole, "choices": choices, "usage": self._usage(endings)}

    def opening(self, choice: Choice) -> Json | None:
        """The frame before a choice's text. None if the route has none."""
        opening = self._dialect.opening(choice.echo, self._plan.reading)
        return None if opening is None else self._frame(choice, opening)

    def pieces(self, choice: Choice, chunk: Chunk) -> list[Json]:
        """The frames of one block, one at least. The first has the block's tokens."""
        parts = self._parts(self._readers[choice.index].push(chunk.text))
        first, *others = parts or (
            self._parts([ContentDelta("")]) if self._plan.reading.plain else [self._dialect.closing()]
        )
        extras = self._extras(choice, chunk)
        return [self._frame(choice, first, extras), *(self._frame(choice, part) for part in others)]

    def closing(self, choice: Choice, ending: Ending) -> list[Json]:
        """The last frames of a choice."""
        reader = self._readers[choice.index]
        rest = self._parts(reader.finish())
        reason = _reason(ending, reader.called)
        end = {"finish_reason": reason, "stats": decoded_json(ending, choice.work), **_met(choice, ending)}
        frames = [self._frame(choice, part) for part in rest]
        return [*frames, self._frame(choice, self._dialect.closing(), end)]

    def _parts(self, events: Sequence[OutputEvent]) -> list[Json]:
        return [part for event in events if (part := self._dialect.piece(event)) is not None]

    def usage(self, endings: Mapping[int, Ending]) -> Json | None:
        """The last frame of a stream: the token counts of all choices. None if the request did not ask for it."""
        if not self._plan.include_usage:
            return None
        return {**self._head, "object": self._dialect.frame, "choices": [], "usage": self._usage(endings)}

    def _choice(self, choice: Choice, answer: Answer) -> Json:
        read = parse_output(self._plan.reading, answer.text)
        return {
            "index": choice.index,
            **self._dialect.answer(read, choice.echo, self._plan.reading),
            "finish_reason": _reason(answer.ending, read.called),
            **self._extras(choice, answer),
            "stats": decoded_json(answer.ending, choice.work),
            **_met(choice, answer.ending),
        }

    def _frame(self, choice: Choice, content: Json, extras: Mapping[str, Any] | None = None) -> Json:
        body = {"index": choice.index, **content, "logprobs": None, "finish_reason": None, **(extras or {})}
        usage = {"usage": None} if self._plan.include_usage else {}
        return {**self._head, "object": self._dialect.frame, "choices": [body], **usage}

    def _extras(self, choice: Choice, part: Answer | Chunk) -> Json:
        shown = {"trace": part.trace} if self._plan.return_trace else {}
        return {"logprobs": self._logprobs(choice, part), "token_ids": part.token_ids, **shown}

    def _logprobs(self, choice: Choice, part: Answer | Chunk) -> Json | None:
        if self._plan.alternatives is None:
            return None
        tokens = token_logprobs(part.pieces, part.trace, self._written[choice.index])
        self._written[choice.index] += sum(len(piece.delta) for piece in part.pieces)
        return self._dialect.logprobs(tokens, self._plan.alternatives)

    def _usage(self, endings: Mapping[int, Ending]) -> Json:
        """The token counts. A prompt counts once, however many answers it gets."""
        firsts = [ending for index, ending in endings.items() if index % self._plan.n == 0]
        prompts = sum(ending.prompt_tokens for ending in firsts)
        completions = sum(ending.completion_tokens for ending in endings.values())
        return {
            "prompt_tokens": prompts,
            "completion_tokens": completions,
            "total_tokens": prompts + completions,
            "prompt_tokens_details": {"cached_tokens": sum(ending.stats.cached_tokens for ending in firsts)},
        }


def _reason(ending: Ending, called: bool) -> str:
    """OpenAI's finish reason. OpenAI has none for a time-out; `length` also means an answer cut off."""
    if ending.finish_reason != "stop":
        return "length"
    return "tool_calls" if called else "stop"


def _met(choice: Choice, ending: Ending) -> Json:
    return {} if choice.work.constraint is None else {"constraint_met": ending.constraint_met}
