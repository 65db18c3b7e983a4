"""One replica: a checkpoint, its tokenizer and its engine, answering `Work`.

Encodes prompts and decodes answers beside the engine's thread, matches stop texts, keeps the replica's
metrics. Knows no HTTP and no Ray: `deployments.py` puts it behind a Serve handle, tests call it directly.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TypeVar

from service.api.answers import stats_json
from service.api.bugs import unexpected_error
from service.api.card import make_card
from service.api.observer import ReplicaMetrics
from service.api.text import TextCodec
from service.api.trace import trace_steps
from service.api.tracing import Timeline, Tracing, start_tracing
from service.api.wire import Answer, Chunk, Ending, Failure, Snapshot, Status, Work
from service.engine import BlockEvent, Engine, EngineConfig, EngineWorker, GenerationRequest, Stats
from service.engine.request import FinishReason
from service.errors import DeadlineExceeded, MrpServeError
from service.model import Checkpoint, LoadOptions, load_checkpoint
from service.model.options import pick_device, pick_dtype
from service.settings import Settings

#: characters from which on a prompt is encoded on another thread
_LONG = 4096

_T = TypeVar("_T")


def load_generator(replica: str, settings: Settings) -> Generator:
    """Loads the checkpoint and starts its engine. Takes as long as reading the weights takes."""
    device = pick_device(settings.device)
    options = LoadOptions(
        pick_dtype(settings.dtype, device),
        device,
        settings.block_size,
        mrp_residual=settings.mrp_residual,
        mrp_scale=settings.mrp_scale,
    )
    tracing = start_tracing(settings)
    return Generator(replica, load_checkpoint(settings.model, options), settings, tracing)


class Generator:
    """Answers requests over one running engine. `replica` names it in metrics."""

    def __init__(
        self, replica: str, checkpoint: Checkpoint, settings: Settings, tracing: Tracing | None = None
    ) -> None:
        limits = EngineConfig(
            settings.max_running,
            settings.max_rows,
            settings.kv_cache_tokens,
            settings.max_model_len,
            settings.priority_aging_s,
            prefix_cache=settings.prefix_cache,
            deterministic=settings.deterministic,
        )
        self._replica, self._tracing = replica, tracing
        self._metrics = ReplicaMetrics()
        self._codec = TextCodec.load(checkpoint.path)
        engine = Engine(checkpoint, limits, self._metrics)
        self._card = make_card(settings, checkpoint.config, engine.max_model_len, self._codec.has_chat_template)
        self._eos = frozenset(checkpoint.config.eos_token_ids)
        self._worker = EngineWorker(engine, settings.max_waiting, settings.stall_timeout_s)
        self._in_flight = 0
        self._worker.start()

    # --- requests ----------------------------------------------------------------------------------

    async def complete(self, work: Work) -> Answer | Failure:
        """The whole answer. Cancel the task to abort the request."""
        chunks: list[Chunk] = []
        async with aclosing(self.stream(work)) as items:
            async for item in items:
                if isinstance(item, Chunk):
                    chunks.append(item)
                elif isinstance(item, Ending):
                    return _join(chunks, item)
                else:
                    return item
        raise AssertionError("a stream ended without an ending")

    async def stream(self, work: Work) -> AsyncGenerator[Chunk | Ending | Failure]:
        """The blocks of an answer and its ending. Close it, or cancel its task, to abort the request."""
        self._in_flight += 1
        try:
            async with aclosing(self._decode(work)) as items:
                async for item in items:
                    yield item
        except MrpServeError as error:
            yield Failure(error)
        except Exception as error:  # noqa: BLE001 - Serve would log what it says
            yield Failure(unexpected_error(error, work.origin.request_id))
        finally:
            self._in_flight -= 1

    async def _decode(self, work: Work) -> AsyncGenerator[Chunk | Ending]:
        prompt = await self._encode(work)
        waited_s = max(0.0, time.time() - work.arrived)
        request = self._request(work, prompt, waited_s)
        run = _Run(waited_s)
        try:
            async with aclosing(self._worker.generate(request)) as events:
                async for chunk in self._chunks(work, events, run):
                    yield chunk
        except (asyncio.CancelledError, GeneratorExit):
            self._metrics.finished(work.params.mode, "abort", run.stats, waited_s)
            raise
        finally:
            if self._tracing:
                self._tracing.decoded(self._replica, work, Timeline(waited_s, len(prompt), run.events))
        if run.reason == "timeout" and not run.num_tokens:
            raise _too_late(work)
        self._metrics.finished(work.params.mode, run.reason, run.stats, waited_s)
        yield Ending(run.reason, len(prompt), run.num_tokens, stats_json(run.stats, waited_s))

    async def _chunks(self, work: Work, events: AsyncGenerator[BlockEvent], run: _Run) -> AsyncGenerator[Chunk]:
        """The events as chunks of text, up to the last one or a stop text; `run` keeps what they add up to."""
        text = self._codec.stream(work.stop)
        async for event in events:
            if self._tracing:
                run.events.append(event)
            piece, token_ids = text.push(event.token_ids)
            reason: FinishReason | None = "stop" if text.stopped else event.finish_reason
            if reason is not None:
                piece += text.finish()
            run.stats, run.num_tokens = event.stats, run.num_tokens + len(token_ids)
            trace = trace_steps(event) if work.return_trace else ()
            if reason is not None:
                run.reason = reason
            if piece or token_ids or trace:
                yield Chunk(event.index, piece, token_ids, stats_json(event.stats, run.waited_s), trace)
            if reason is not None:
                return

    async def _encode(self, work: Work) -> tuple[int, ...]:
        if work.token_ids is not None:
            return work.token_ids
        if work.messages is not None:
            messages = work.messages
            length = sum(len(message["content"]) for message in messages)
            return await _aside(length, lambda: tuple(self._codec.encode_chat(messages)))
        text = work.text or ""
        return await _aside(len(text), lambda: tuple(self._codec.encode(text)))

    def _request(self, work: Work, prompt: tuple[int, ...], waited_s: float) -> GenerationRequest:
        if waited_s >= work.timeout_s:
            raise _too_late(work)
        return GenerationRequest(
            request_id=work.request_id,
            prompt_token_ids=prompt,
            params=work.params,
            sampling=work.sampling,
            max_new_tokens=work.max_new_tokens,
            stop_token_ids=work.stop_token_ids | (frozenset() if work.ignore_eos else self._eos),
            timeout_s=work.timeout_s - waited_s,
            priority=work.priority,
            tenant=work.tenant,
            cache_salt=work.cache_salt,
            weight=work.weight,
            waited_s=waited_s,
        )

    # --- the replica -------------------------------------------------------------------------------

    def status(self) -> Status:
        """Whether it can generate, and what."""
        return Status(self._replica, self._worker.failure, self._card)

    def snapshot(self) -> Snapshot:
        """Its metrics now."""
        return Snapshot(self._replica, self._in_flight, self._metrics.families(self._worker.state()))

    def close(self) -> None:
        """Stops the engine; requests in flight fail with NotReady."""
        self._worker.stop()
        if self._tracing:
            self._tracing.close()


@dataclass(slots=True)
class _Run:
    """What a request's events have added up to; `reason` is right once they have ended."""

    waited_s: float
    stats: Stats = Stats()
    num_tokens: int = 0
    reason: FinishReason = "abort"
    events: list[BlockEvent] = field(default_factory=list)  # for spans alone


async def _aside(length: int, work: Callable[[], _T]) -> _T:
    """Runs short work here and long work on another thread, so that the event loop goes on."""
    return await asyncio.to_thread(work) if length >= _LONG else work()


def _join(chunks: list[Chunk], ending: Ending) -> Answer:
    return Answer(
        "".join(chunk.text for chunk in chunks),
        tuple(token for chunk in chunks for token in chunk.token_ids),
        ending,
        tuple(step for chunk in chunks for step in chunk.trace),
    )


def _too_late(work: Work) -> DeadlineExceeded:
    return DeadlineExceeded(f"timeout_s is {work.timeout_s}, nothing was decoded by then", param="timeout_s")
