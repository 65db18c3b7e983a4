"""Turns the answers of both protocols, whole or streamed, into an `Observation` of what a client saw.

The caller passes bytes with the time of their arrival. A `Reader` never raises on what a server sends: a malformed,
incomplete or refused answer is an observation with an `error`.
"""

import itertools
import json
from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

BROKEN_OFF = "the stream broke off"
#: what a malformed answer raises where it is read
_MALFORMED = (ValueError, KeyError, TypeError, IndexError, AttributeError)

Json = dict[str, Any]


@dataclass(frozen=True)
class Route:
    path: str
    stream: bool
    openai: bool

    @property
    def name(self) -> str:
        return f"{self.path} ({'stream' if self.stream else 'json'})"


@dataclass
class Observation:
    """What a client saw of one request. Times are seconds of one clock. `due`: the intended start.

    `blocks`: the arrivals with their tokens. `status` 0: there was no answer.
    """

    route: Route
    mode: str
    due: float
    began: float
    ended: float = 0.0
    status: int = 0
    error: str = ""
    finish: str = ""
    retry_after: float | None = None
    blocks: list[tuple[float, int]] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    prompt_tokens: int = 0
    tokens: int = 0
    cached_tokens: int = 0
    tokens_per_forward: float | None = None

    @property
    def ok(self) -> bool:
        return self.status == 200 and not self.error

    @property
    def first_block_s(self) -> float | None:
        """Seconds from the intended start to the first block. None for an answer that is not streamed."""
        return self.blocks[0][0] - self.due if self.route.stream and self.blocks else None

    @property
    def gaps_s(self) -> list[float]:
        times = [at for at, _ in self.blocks] if self.route.stream else []
        return [after - before for before, after in itertools.pairwise(times)]

    @property
    def total_s(self) -> float:
        return self.ended - self.due

    @property
    def tokens_per_s(self) -> float | None:
        return self.tokens / self.total_s if self.ok and self.tokens and self.total_s > 0 else None

    def lost(self, error: Exception, at: float) -> None:
        """Notes that the connection broke."""
        self.status, self.error = 0, ""
        self.fail(f"{type(error).__name__}: {error}", at)

    def fail(self, error: str, at: float) -> None:
        """Notes an end without a whole answer. The first reason is kept."""
        self.error, self.ended = self.error or error, at


class Reader(ABC):
    """Reads one answer into an observation: `refused`, `whole`, or `line` for each line and then `end`."""

    def __init__(self, seen: Observation) -> None:
        self.seen = seen
        self._event, self._complete = "", False

    def refused(self, body: bytes, retry_after: str | None, at: float) -> None:
        with suppress(ValueError, TypeError):  # it may also be a date
            self.seen.retry_after = float(retry_after)  # type: ignore[arg-type]
        try:
            message = _error_of(json.loads(body))
        except (ValueError, TypeError, AttributeError):
            message = body[:200].decode("utf-8", "replace") or "an empty answer"
        self.seen.fail(message, at)

    def whole(self, body: bytes, at: float) -> None:
        self.seen.ended = at
        try:
            self._whole(json.loads(body), at)
        except _MALFORMED as error:
            self.seen.fail(f"malformed answer: {type(error).__name__}: {error}", at)

    def line(self, line: bytes, at: float) -> None:
        """Reads one line of a stream. A line that is neither event nor data is a comment or empty."""
        line = line.rstrip(b"\r\n")
        if line.startswith(b"event:"):
            self._event = line[6:].strip().decode("utf-8", "replace")
        elif line.startswith(b"data:"):
            try:
                self._frame(self._event, line[5:].strip(), at)
            except _MALFORMED as error:
                self.seen.fail(f"malformed frame: {type(error).__name__}: {error}", at)

    def end(self, at: float) -> None:
        self.seen.ended = at
        if not self._complete:
            self.seen.fail(BROKEN_OFF, at)

    @abstractmethod
    def _whole(self, answer: Json, at: float) -> None: ...

    @abstractmethod
    def _frame(self, event: str, data: bytes, at: float) -> None: ...

    def _block(self, token_ids: list[int], text: str, at: float) -> None:
        self.seen.blocks.append((at, len(token_ids)))
        self.seen.token_ids += token_ids
        self.seen.text += text

    def _ending(self, usage: Json, stats: Json, finish: str) -> None:
        seen = self.seen
        seen.finish = stats.get("finish_reason", finish)
        seen.prompt_tokens, seen.tokens = usage.get("prompt_tokens", 0), usage.get("completion_tokens", 0)
        details = usage.get("prompt_tokens_details") or {}
        seen.cached_tokens = stats.get("cached_tokens", details.get("cached_tokens") or 0)
        seen.tokens_per_forward = stats.get("tokens_per_forward")


class NativeReader(Reader):
    def _whole(self, answer: Json, at: float) -> None:
        self._block(answer["token_ids"], answer["text"], at)
        self._ending(answer["usage"], answer["stats"], answer["finish_reason"])

    def _frame(self, event: str, data: bytes, at: float) -> None:
        content = json.loads(data)
        if event == "block":
            self._block(content["token_ids"], content["text"], at)
        elif event == "done":
            self._ending(content["usage"], content["stats"], content["finish_reason"])
            self._complete = True
        else:
            self.seen.fail(_error_of(content), at)


class OpenAiReader(Reader):
    """Reads answers of OpenAI's routes, of this service or another one. Counts may come in separate frames."""

    def __init__(self, seen: Observation) -> None:
        super().__init__(seen)
        self._usage: Json = {}
        self._stats: Json = {}
        self._finish = ""

    def _whole(self, answer: Json, at: float) -> None:
        [choice] = answer["choices"]
        self._usage = answer.get("usage") or {}
        self._choice({**choice, "delta": choice.get("message")}, at)
        self._complete_answer()

    def _frame(self, event: str, data: bytes, at: float) -> None:  # noqa: ARG002 - these frames have no names
        if data == b"[DONE]":
            self._complete_answer()
            return
        content = json.loads(data)
        if "error" in content:
            self.seen.fail(_error_of(content), at)
            return
        self._usage = content.get("usage") or self._usage
        for choice in content["choices"]:
            self._choice(choice, at)

    def _choice(self, choice: Json, at: float) -> None:
        text = choice["text"] if "text" in choice else choice["delta"].get("content")
        token_ids = choice.get("token_ids") or []
        if text or token_ids:
            self._block(token_ids, text or "", at)
        self._stats = choice.get("stats") or self._stats
        self._finish = choice.get("finish_reason") or self._finish

    def _complete_answer(self) -> None:
        """Servers that send no token ids send a sum of tokens, which is divided evenly among the frames."""
        self._complete, seen = True, self.seen
        self._ending(self._usage, self._stats, self._finish)
        if seen.blocks and not seen.token_ids:
            share, rest = divmod(seen.tokens, len(seen.blocks))
            seen.blocks = [(at, share + (number < rest)) for number, (at, _) in enumerate(seen.blocks)]
        seen.tokens = seen.tokens or len(seen.token_ids)


def reader(seen: Observation) -> Reader:
    return (OpenAiReader if seen.route.openai else NativeReader)(seen)


def _error_of(content: Json) -> str:
    error = content.get("error")
    if not isinstance(error, dict):
        return json.dumps(content)[:200]
    return f"{error.get('code') or error.get('type') or 'error'}: {error.get('message')}"
