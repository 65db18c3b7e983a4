"""One replica: a checkpoint, its tokenizer and its engine. It answers `Work`.

It encodes prompts and decodes answers outside the engine's thread, and keeps the replica's metrics.
`rayserve/deployments.py` puts it behind links (`link/server.py`); tests call it directly.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, contextmanager
from dataclasses import replace
from functools import partial
from typing import TypeVar

from service.decode.block import MASKED
from service.engine import BlockEvent, BlockProgress, GenerationRequest
from service.engine.request import LogprobsRequest, Stats
from service.errors import MrpServeError
from service.replica.blocks import AnswerBlocks
from service.replica.card import make_card
from service.replica.engines import EngineClient
from service.replica.metrics import ReplicaMetrics
from service.replica.reads import Reader
from service.replica.spans import Timeline, trace_request
from service.replica.weight_update import WeightUpdater
from service.settings import Settings
from service.telemetry.faults import unexpected_error
from service.telemetry.tracing import Tracing
from service.text import TextCodec
from service.wire import (
    Chunk,
    Ending,
    Exchanged,
    Failure,
    Items,
    Progress,
    Snapshot,
    Status,
    Weights,
    Work,
    too_late,
)

_log = logging.getLogger(__name__)

#: a prompt of at least so many characters is encoded on another thread
_LONG = 4096
#: a prompt of at least so many characters takes memory that the allocator keeps: 1 MB of text some 300 MB
_HUGE = 128 * 1024

_T = TypeVar("_T")


class Generator:
    """Answers requests with one running engine, which ends with it. `replica`: its name in metrics.

    `metrics`: observe the engine.
    """

    def __init__(
        self,
        replica: str,
        engine: EngineClient,
        metrics: ReplicaMetrics,
        settings: Settings,
        tracing: Tracing | None = None,
    ) -> None:
        self._replica, self._engine, self._metrics, self._tracing = replica, engine, metrics, tracing
        info = engine.info
        self._codec = TextCodec.load(info.path)
        if self._codec.chat_warning:
            _log.warning("%s", self._codec.chat_warning)
        self._eos = frozenset(info.config.eos_token_ids)
        self._reader = Reader(self._codec, info.config.mask_token_id, info.config.vocab_size)
        self._weights = WeightUpdater(replica, make_card(settings, info, self._codec), engine, settings)
        self._encoder = ThreadPoolExecutor(1, "encode")
        self._in_flight = 0

    # --- requests ----------------------------------------------------------------------------------

    async def stream(self, work: Work) -> Items:
        """The blocks of an answer and its ending, and steps if the work asks for them.

        A work with `scoring` has an ending only. Closing the stream, or cancelling its task, aborts the request.
        """
        self._in_flight += 1
        try:
            if work.scoring is not None:
                yield await self._score(work)
                return
            answer, events = await self._begin(work)
            item: Progress | Chunk | None = None
            with self._followed(work, answer):
                async with aclosing(events):
                    async for event in events:
                        item = answer.progress(event) if isinstance(event, BlockProgress) else answer.take(event)
                        if answer.ending is not None:
                            break
                        if item is not None:
                            yield item
            ending = self._counted(work, answer)
            yield item or ending
        except MrpServeError as error:
            yield Failure(error)
        except Exception as error:  # noqa: BLE001 - its message may quote the request
            yield Failure(unexpected_error(error, work.origin.request_id))
        finally:
            self._in_flight -= 1

    async def _begin(self, work: Work) -> tuple[AnswerBlocks, AsyncGenerator[BlockEvent | BlockProgress]]:
        """The answer to a work, and the engine's events that fill it."""
        self._weights.admit(work)
        prompt = await self._encode(work)
        waited_s = work.arrived.waited_s()
        request = self._request(work, prompt, waited_s)
        pieces = self._codec.token_texts() if work.return_pieces else None
        text, size = self._codec.stream(work.stop), self._engine.info.config.block_size
        answer = AnswerBlocks(work, len(prompt), waited_s, text, pieces, self._codec.name_of, size)
        if self._tracing:
            answer.events = []
        return answer, self._engine.generate(request, work.constraint)

    @contextmanager
    def _followed(self, work: Work, answer: AnswerBlocks) -> Iterator[None]:
        """Counts an answer that its client leaves, and traces every answer."""
        try:
            yield
        except (asyncio.CancelledError, GeneratorExit):
            self._metrics.finished(work.params.mode, "abort", answer.stats)
            raise
        finally:
            if self._tracing:
                timeline = Timeline(answer.waited_s, answer.prompt_tokens, answer.events or [])
                trace_request(self._tracing, self._replica, work, timeline)

    async def _score(self, work: Work) -> Ending:
        """The places of a work with `scoring`: one request to the engine that has one event."""
        self._weights.admit(work)
        length = sum(len(message["content"]) for message in work.messages or ()) + len(work.text or "")
        prompt = await self._aside(length, lambda: self._reader.prompt(work))
        asked, waited_s = self._reader.asked(work), work.arrived.waited_s()
        request = replace(self._request(work, prompt, waited_s), max_new_tokens=0, logprobs=asked)
        stats, events = Stats(), list[BlockEvent]()
        try:
            async with aclosing(self._engine.generate(request)) as items:
                events = [event async for event in items if isinstance(event, BlockEvent)]
        except asyncio.CancelledError:
            self._metrics.finished(work.params.mode, "abort", stats)
            raise
        finally:
            if self._tracing:
                trace_request(self._tracing, self._replica, work, Timeline(waited_s, len(prompt), events))
        event = events[-1]
        if event.finish_reason != "stop":
            raise too_late(work)
        stats = event.stats.later_by(waited_s)
        self._metrics.finished(work.params.mode, "stop", stats)
        prompt_tokens = sum(token != MASKED for token in prompt)
        return Ending("stop", prompt_tokens, 0, stats, places=self._reader.named(asked, event))

    def _counted(self, work: Work, answer: AnswerBlocks) -> Ending:
        """Counts a finished answer. Called before the last item is sent: a client that leaves then has all of it."""
        ending = answer.ending
        if ending is None:
            raise AssertionError("a request's events ended without a finish reason")
        if ending.finish_reason == "timeout" and not ending.completion_tokens:
            raise too_late(work)
        self._metrics.finished(work.params.mode, ending.finish_reason, ending.stats)
        return ending

    async def _aside(self, length: int, work: Callable[[], _T]) -> _T:
        """Runs short work on this thread, and long work on another one, which bounds its memory."""
        if length < _LONG:
            return work()
        aside = work if length < _HUGE else partial(_then_give_memory_back, work)
        return await asyncio.get_running_loop().run_in_executor(self._encoder, aside)

    async def _encode(self, work: Work) -> tuple[int, ...]:
        if work.token_ids is not None:
            return work.token_ids
        if work.messages is not None:
            messages, tools, think = work.messages, work.tools, work.think
            length = sum(len(str(part)) for part in (*messages, *tools))
            return await self._aside(length, lambda: tuple(self._codec.encode_chat(messages, tools, think=think)))
        text = work.text or ""
        return await self._aside(len(text), lambda: tuple(self._codec.encode(text)))

    def _request(self, work: Work, prompt: tuple[int, ...], waited_s: float) -> GenerationRequest:
        sent = work.resume.token_ids
        if waited_s >= work.timeout_s and not sent:
            raise too_late(work)
        return GenerationRequest(
            request_id=work.request_id,
            prompt_token_ids=prompt + sent,
            params=work.params,
            sampling=work.sampling,
            max_new_tokens=self._room(work, prompt),
            stop_token_ids=work.stop_token_ids | (frozenset() if work.ignore_eos else self._eos),
            timeout_s=max(0.0, work.timeout_s - waited_s),
            priority=work.priority,
            tenant=work.tenant,
            cache_salt=work.cache_salt,
            weight=work.weight,
            waited_s=waited_s,
            num_continued=len(sent),
            report_steps=work.stream_steps,
            keep_steps=work.return_trace or work.return_pieces,
            together=1 if work.stop else work.together,  # a stop text ends the request early
            logprobs=LogprobsRequest(work.top_logprobs) if work.top_logprobs else None,
            version=work.resume.version if work.resume.num_blocks else None,
        )

    def _room(self, work: Work, prompt: tuple[int, ...]) -> int:
        """The tokens that may still be decoded. `prompt`: without those that other replicas have decoded."""
        most = work.max_new_tokens
        if work.shorten:
            most = max(1, min(most, self._engine.info.max_model_len - len(prompt)))
        return most - len(work.resume.token_ids)

    async def count(self, work: Work) -> int | Failure:
        """The number of tokens of a work's prompt."""
        try:
            return len(await self._encode(work))
        except MrpServeError as error:
            return Failure(error)
        except Exception as error:  # noqa: BLE001 - as in `stream`
            return Failure(unexpected_error(error, work.origin.request_id))

    # --- the replica -------------------------------------------------------------------------------

    async def check_weights(self, weights: Weights) -> Exchanged:
        """Whether the replica could take these weights. Nothing is changed."""
        return await self._weights.check(weights)

    async def exchange(self, weights: Weights) -> Exchanged:
        """Takes these weights, unless it has them or newer ones."""
        return await self._weights.update(weights)

    def status(self) -> Status:
        """Whether the replica can generate, and its card."""
        return Status(self._replica, self._engine.failure, self._weights.card)

    def snapshot(self) -> Snapshot:
        """The current metrics."""
        self._metrics.serves(self._weights.card.weights.version)
        families = self._metrics.families(self._engine.state(), self._replica)
        return Snapshot(self._replica, self._in_flight, families)

    def close(self) -> None:
        """Stops the engine. Requests in progress fail with ReplicaStopping."""
        self._engine.close()
        self._encoder.shutdown(wait=False, cancel_futures=True)
        if self._tracing:
            self._tracing.close()


def _then_give_memory_back(work: Callable[[], _T]) -> _T:
    """Does the work and returns freed memory to the system, which glibc does not do by itself."""
    try:
        return work()
    finally:
        if (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
            trim(0)
