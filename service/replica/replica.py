"""One replica: a checkpoint, its tokenizer and its engine. It answers `ReplicaRequest`.

`rayserve/deployments.py` puts it behind links (`link/server.py`); tests call it directly.
"""

import asyncio
import ctypes
import logging
from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, contextmanager
from dataclasses import replace
from functools import partial
from typing import TypeVar

from msgspec import structs

from service.decode.block import MASKED
from service.engine import BlockEvent, BlockProgress, GenerationRequest
from service.engine.request import LogprobsRequest, Stats, check_text
from service.engine_process.client import EngineProcessClient
from service.errors import PromptTooLong
from service.messages.finished import FinishedRequest, FinishedRequests
from service.messages.replica_status import Snapshot, Status
from service.messages.wire import (
    Chunk,
    Encoded,
    Ending,
    Failure,
    Progress,
    ReplicaRequest,
    ReplicaStream,
    Scoring,
    mode_of,
    too_late,
)
from service.quality.schema import Plan
from service.replica.blocks import AnswerBlocks
from service.replica.card import make_card
from service.replica.control import ReplicaControl
from service.replica.metrics import ReplicaMetrics
from service.replica.recent import RecentRequests
from service.replica.scoring import PositionScorer
from service.replica.spans import Timeline, trace_request
from service.settings.settings import Settings
from service.telemetry.tracing import Tracing
from service.text import TextCodec
from service.tracebacks import error_for_client

_log = logging.getLogger(__name__)

#: the characters from which on a prompt is encoded on another thread, since 1,024 take up to 20 ms; and from which on
#: it takes seconds, and memory that the allocator keeps: 1 MB of text some 300 MB
_LONG, _HUGE = 1024, 64 * 1024

_T = TypeVar("_T")


class Replica:
    """Answers requests with one running `engine`, which ends with it. `replica`: its name in metrics."""

    def __init__(
        self,
        replica: str,
        engine: EngineProcessClient,
        metrics: ReplicaMetrics,
        settings: Settings,
        tracing: Tracing | None = None,
    ) -> None:
        self._replica, self.engine, self._metrics, self._tracing = replica, engine, metrics, tracing
        info = engine.info
        self.codec = TextCodec.load(info.path)
        self.codec.limit_to(info.max_model_len)
        for warning in (self.codec.template.warning, self.codec.warning(info.config.vocab_size)):
            if warning:
                _log.warning("%s", warning)
        self._eos = frozenset(self.codec.end_tokens(info.config.eos_token_ids))
        self._scorer = PositionScorer(self.codec, info.config.mask_token_id, info.config.vocab_size)
        self._control = ReplicaControl(replica, make_card(settings, info, self.codec), engine, settings)
        self.control = self._control.run
        self._encoders = [ThreadPoolExecutor(1, "encode") for _ in (_LONG, _HUGE)]
        self._in_flight = 0
        self._recent = RecentRequests() if settings.online_mrp_dir else None

    async def stream(self, request: ReplicaRequest) -> ReplicaStream:
        """The blocks of an answer and its ending, and steps on request; with `scoring` an ending only.

        Closing the stream, or cancelling its task, aborts the request.
        """
        self._in_flight += 1
        try:
            if request.scoring is not None:
                yield await self._score(request, request.scoring)
                return
            answer, events = await self._begin(request)
            timeline = Timeline(answer.waited_s, answer.prompt_tokens)
            item: Progress | Chunk | None = None
            with self._tracked(request, timeline, lambda: answer.stats):
                async with aclosing(events):
                    async for event in events:
                        if isinstance(event, BlockProgress):
                            item = answer.progress(event)
                        else:
                            item = answer.push(event)
                            if self._tracing:
                                timeline.events.append(event)
                        if answer.ending is not None:
                            break
                        if item is not None:
                            yield item
            ending = self._counted(request, answer)
            yield item or ending
        except Exception as error:  # noqa: BLE001 - its message may quote the request
            yield _failure(error, request)
        finally:
            self._in_flight -= 1

    async def _begin(
        self, replica_request: ReplicaRequest
    ) -> tuple[AnswerBlocks, AsyncGenerator[BlockEvent | BlockProgress]]:
        self._control.check_version(replica_request)
        prompt = await self._encode(replica_request)
        waited_s = replica_request.arrived.waited_s()
        request = self._request(replica_request, prompt, waited_s)
        if words := replica_request.bad_words:
            token_ids = await self._run(sum(map(len, words)), lambda: self.codec.encode_bad_words(words))
            sampling = structs.replace(request.sampling, bad_words_token_ids=token_ids)
            request = replace(request, sampling=sampling)
        token_texts = self.codec.token_texts() if replica_request.return_token_texts else None
        answer = AnswerBlocks(
            request=replica_request,
            prompt_tokens=len(prompt),
            waited_s=waited_s,
            text=self.codec.stream(replica_request.stop, request.sampling.min_tokens),
            token_texts=token_texts,
            text_of=self.codec.name_of,
            block_size=self.engine.info.config.block_size,
            all_token_ids=None if self._recent is None else [*request.prompt_token_ids],
        )
        return answer, self.engine.generate(request, replica_request.constraint, answer.note_ignored)

    @contextmanager
    def _tracked(self, request: ReplicaRequest, timeline: Timeline, stats: Callable[[], Stats]) -> Iterator[None]:
        try:
            yield
        except (asyncio.CancelledError, GeneratorExit):
            self._metrics.finished(mode_of(request, stats()).name, "abort", stats())
            raise
        finally:
            if self._tracing:
                trace_request(self._tracing, self._replica, request, timeline)

    async def _score(self, replica_request: ReplicaRequest, scoring: Scoring) -> Ending:
        self._control.check_version(replica_request)
        length = sum(len(message["content"]) for message in replica_request.messages or ())
        length += len(replica_request.text or "")
        prompt = await self._run(length, lambda: self._scorer.prompt(replica_request, scoring))
        logprobs, waited_s = self._scorer.logprobs_request(scoring), replica_request.arrived.waited_s()
        request = replace(self._request(replica_request, prompt, waited_s), max_new_tokens=0, logprobs=logprobs)
        timeline = Timeline(waited_s, len(prompt))
        with self._tracked(replica_request, timeline, Stats):
            async with aclosing(self.engine.generate(request)) as items:
                timeline.events.extend([event async for event in items if isinstance(event, BlockEvent)])
        event = timeline.events[-1]
        if event.finish_reason != "stop":
            raise too_late(replica_request)
        stats = event.stats.later_by(waited_s)
        self._metrics.finished(replica_request.mode.name, "stop", stats)
        prompt_tokens = sum(token != MASKED for token in prompt)
        return Ending("stop", prompt_tokens, 0, stats, position_scores=self._scorer.position_scores(logprobs, event))

    def _counted(self, request: ReplicaRequest, answer: AnswerBlocks) -> Ending:
        """Counts a finished answer. Called before the last item is sent: a client that leaves then has all of it."""
        ending = answer.ending
        if ending is None:
            raise AssertionError("a request's events ended without a finish reason")
        if ending.finish_reason == "timeout" and not ending.completion_tokens:
            raise too_late(request)
        mode = mode_of(request, ending.stats)
        self._metrics.finished(mode.name, ending.finish_reason, ending.stats)
        if request.quality:
            self._metrics.count_quality(request.quality, Plan.from_mode(mode).name)
        if self._recent is not None and answer.all_token_ids and ending.finish_reason in {"stop", "length"}:
            token_ids, owner = tuple(answer.all_token_ids), request.sharing.tenant
            self._recent.add(FinishedRequest(token_ids, answer.prompt_tokens, owner, ending.stats))
        return ending

    async def _run(self, length: int, encode: Callable[[], _T]) -> _T:
        if length < _LONG:
            return encode()
        long, huge = self._encoders  # so that no prompt of a usual length waits for one that takes seconds
        loop = asyncio.get_running_loop()
        if length < _HUGE:
            return await loop.run_in_executor(long, encode)
        return await loop.run_in_executor(huge, partial(_then_trim_memory, encode))

    async def _encode(self, request: ReplicaRequest) -> tuple[int, ...]:
        if request.token_ids is not None:
            return request.token_ids
        if request.messages is not None:
            messages, tools, think = request.messages, request.tools, request.think
            length = sum(len(str(part)) for part in (*messages, *tools))
            return await self._run(length, lambda: tuple(self.codec.encode_chat(messages, tools, think=think)))
        text = request.text or ""
        return await self._run(len(text), lambda: tuple(self.codec.encode(text)))

    def _request(self, request: ReplicaRequest, prompt: tuple[int, ...], waited_s: float) -> GenerationRequest:
        if request.token_ids is None:
            check_text(prompt, self.engine.info.config, "prompt" if request.messages is None else "messages")
        sent = request.resume.token_ids
        if waited_s >= request.timeout_s and not sent:
            raise too_late(request)
        return GenerationRequest(
            request_id=request.request_id,
            prompt_token_ids=prompt + sent,
            mode=request.mode,
            plans=request.plans,
            sampling=request.sampling,
            max_new_tokens=self._room(request, prompt),
            stop_token_ids=request.stop_token_ids | (frozenset() if request.ignore_eos else self._eos),
            timeout_s=max(0.0, request.timeout_s - waited_s),
            sharing=request.sharing,
            waited_s=waited_s,
            num_continued=len(sent),
            report_steps=request.stream_steps,
            keep_steps=request.return_trace or request.return_token_texts or request.return_step_map,
            stream_interval=1 if request.stop else request.stream_interval,  # a stop text ends the request early
            logprobs=LogprobsRequest(request.top_logprobs) if request.top_logprobs else None,
            version=request.resume.version if request.resume.num_blocks else None,
        )

    def _room(self, request: ReplicaRequest, prompt: tuple[int, ...]) -> int:
        """The tokens that may still be decoded. `prompt`: the prompt without the tokens of other replicas.

        PromptTooLong if the prompt of a request that may be shortened leaves no token.
        """
        limit, longest = request.max_new_tokens, self.engine.info.max_model_len
        if request.shorten:
            if len(prompt) >= longest:
                excess = f"the prompt is too long: it has {len(prompt)} tokens, and an answer has at least one"
                raise PromptTooLong.over(longest, excess, param="messages" if request.messages else "prompt")
            limit = min(limit, longest - len(prompt))
        return limit - len(request.resume.token_ids)

    async def encode(self, request: ReplicaRequest) -> Encoded | Failure:
        """The prompt of a request as token ids, and token ids as text."""
        try:
            token_ids = await self._encode(request)
            if request.token_ids is None:
                return Encoded(token_ids)
            return Encoded(
                token_ids, await self._run(len(token_ids), lambda: self.codec.decode(token_ids, control=True))
            )
        except Exception as error:  # noqa: BLE001 - as in `stream`
            return _failure(error, request)

    def status(self) -> Status:
        return Status(self._replica, self.engine.failure, self._control.card, pause=self._control.pause)

    def snapshot(self) -> Snapshot:
        families = self._metrics.families(self.engine.state(), self._control.card.weights, self._replica)
        return Snapshot(self._replica, self._in_flight, families)

    def take_finished(self) -> FinishedRequests:
        """The requests that ended by themselves since the last call. None are kept unless MRP learns."""
        requests = self._recent.take() if self._recent is not None else ()
        return FinishedRequests(requests, self._control.card.weights, self.engine.state().num_waiting)

    def close(self) -> None:
        self.engine.close()
        for encoder in self._encoders:
            encoder.shutdown(wait=False, cancel_futures=True)
        if self._tracing:
            self._tracing.close()


def _failure(error: Exception, request: ReplicaRequest) -> Failure:
    return Failure(error_for_client(error, request.origin.request_id))


def _then_trim_memory(encode: Callable[[], _T]) -> _T:
    """Encodes, and returns freed memory to the system, which glibc does not do by itself."""
    try:
        return encode()
    finally:
        if (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
            trim(0)
