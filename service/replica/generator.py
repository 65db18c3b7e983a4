"""One replica: a checkpoint, its tokenizer and its engine, answering `Work`.

Encodes prompts and decodes answers beside the engine's thread, keeps the replica's metrics. Knows no HTTP
and no Ray: `deployments.py` puts it behind a Serve handle, tests call it directly.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import TypeVar

from service.engine import BlockEvent, Engine, EngineConfig, EngineWorker, GenerationRequest, Parts
from service.errors import MrpServeError
from service.model import Checkpoint, LoadOptions, load_checkpoint
from service.model.options import pick_device, pick_dtype
from service.replica.blocks import AnswerBlocks
from service.replica.card import make_card
from service.replica.metrics import ReplicaMetrics
from service.replica.spans import Timeline, trace_request
from service.settings import Settings
from service.telemetry.faults import unexpected_error
from service.telemetry.tracing import Tracing, start_tracing
from service.text import TextCodec
from service.wire import Answer, Chunk, Ending, Failure, Snapshot, Status, Work, too_late

_log = logging.getLogger(__name__)

#: characters from which on a prompt is encoded on another thread
_LONG = 4096

_T = TypeVar("_T")


def load_generator(replica: str, settings: Settings, parts: Parts | None = None) -> Generator:
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
    generator = Generator(replica, load_checkpoint(settings.model, options), settings, tracing, parts)
    generator.prepare()
    return generator


class Generator:
    """Answers requests over one running engine. `replica` names it in metrics; `parts` are its engine's."""

    def __init__(
        self,
        replica: str,
        checkpoint: Checkpoint,
        settings: Settings,
        tracing: Tracing | None = None,
        parts: Parts | None = None,
    ) -> None:
        limits = EngineConfig(
            settings.max_running,
            settings.max_rows,
            settings.kv_cache_tokens,
            settings.max_model_len,
            settings.priority_aging_s,
            prefix_cache=settings.prefix_cache,
            deterministic=settings.deterministic,
            attention=settings.attention,
            draft_candidates=settings.draft_candidates,
            max_prefill_tokens=settings.max_prefill_tokens,
        )
        self._replica, self._tracing = replica, tracing
        self._metrics = ReplicaMetrics()
        self._codec = TextCodec.load(checkpoint.path)
        if self._codec.chat_warning:
            _log.warning("%s", self._codec.chat_warning)
        self._engine = engine = Engine(checkpoint, limits, self._metrics, parts)
        self._card = make_card(settings, checkpoint, engine.max_model_len, self._codec.chat_problem is None)
        self._eos = frozenset(checkpoint.config.eos_token_ids)
        # The ingress bounds what waits; here is room for all that it lets through.
        room = settings.max_waiting + settings.places
        self._worker = EngineWorker(engine, room, settings.stall_timeout_s)
        self._in_flight = 0
        self._worker.start()

    # --- requests ----------------------------------------------------------------------------------

    async def complete(self, work: Work) -> Answer | Failure:
        """The whole answer. Cancel the task to abort the request."""
        chunks: list[Chunk] = []
        async with aclosing(self.stream(work)) as items:
            async for item in items:
                if isinstance(item, Failure):
                    return item
                ending = item.ending if isinstance(item, Chunk) else item
                if isinstance(item, Chunk):
                    chunks.append(item)
                if ending is not None:
                    return _join(chunks, ending)
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
        waited_s = work.arrived.waited_s()
        request = self._request(work, prompt, waited_s)
        pieces = self._codec.pieces() if work.return_pieces else None
        answer = AnswerBlocks(work, len(prompt), waited_s, self._codec.stream(work.stop), pieces)
        chunk: Chunk | None = None
        traced: list[BlockEvent] = []
        try:
            async with aclosing(self._worker.generate(request)) as events:
                async for event in events:
                    if self._tracing:
                        traced.append(event)
                    chunk = answer.take(event)
                    if answer.ending is not None:
                        break
                    if chunk is not None:
                        yield chunk
        except (asyncio.CancelledError, GeneratorExit):
            self._metrics.finished(work.params.mode, "abort", answer.stats)
            raise
        finally:
            if self._tracing:
                trace_request(self._tracing, self._replica, work, Timeline(waited_s, len(prompt), traced))
        ending = self._counted(work, answer)
        yield chunk or ending

    def _counted(self, work: Work, answer: AnswerBlocks) -> Ending:
        """Counts an answer before its last item is sent: who leaves now has had it all."""
        ending = answer.ending
        if ending is None:
            raise AssertionError("a request's events ended without a finish reason")
        if ending.finish_reason == "timeout" and not ending.completion_tokens:
            raise too_late(work)
        self._metrics.finished(work.params.mode, ending.finish_reason, ending.stats)
        return ending

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
        sent = work.resume.token_ids
        if waited_s >= work.timeout_s and not sent:
            raise too_late(work)
        return GenerationRequest(
            request_id=work.request_id,
            prompt_token_ids=prompt + sent,
            params=work.params,
            sampling=work.sampling,
            max_new_tokens=work.max_new_tokens - len(sent),
            stop_token_ids=work.stop_token_ids | (frozenset() if work.ignore_eos else self._eos),
            timeout_s=max(0.0, work.timeout_s - waited_s),
            priority=work.priority,
            tenant=work.tenant,
            cache_salt=work.cache_salt,
            weight=work.weight,
            waited_s=waited_s,
            num_continued=len(sent),
        )

    # --- the replica -------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Does what the first request would wait for. Before any is taken."""
        self._engine.prepare()

    def status(self) -> Status:
        """Whether it can generate, and what."""
        return Status(self._replica, self._worker.failure, self._card)

    def snapshot(self) -> Snapshot:
        """Its metrics now."""
        families = self._metrics.families(self._worker.state(), self._replica)
        return Snapshot(self._replica, self._in_flight, families)

    def close(self) -> None:
        """Stops the engine; requests in flight fail with ReplicaStopping."""
        self._worker.stop()
        if self._tracing:
            self._tracing.close()


async def _aside(length: int, work: Callable[[], _T]) -> _T:
    """Runs short work here and long work on another thread, so that the event loop goes on."""
    return await asyncio.to_thread(work) if length >= _LONG else work()


def _join(chunks: list[Chunk], ending: Ending) -> Answer:
    return Answer(
        "".join(chunk.text for chunk in chunks),
        tuple(token for chunk in chunks for token in chunk.token_ids),
        ending,
        tuple(step for chunk in chunks for step in chunk.trace),
        tuple(piece for chunk in chunks for piece in chunk.pieces),
    )
