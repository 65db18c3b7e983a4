"""A simulated replica with the interface of `GeneratorDeployment`, without a model or torch.

Its checkpoint is a file with its speed (`clock.Speed`). `service.app:compose` makes it like the real one.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path

import ray
from ray import serve

from loadtest.fleet.clock import ClockEngine, Job, Speed
from service.decode.modes import MODES
from service.engine.request import ForwardCounts, Stats
from service.link.server import LinkServer
from service.quality.presets import Presets
from service.quality.schema import Band
from service.settings import Settings
from service.telemetry.metrics import METRICS, Registry
from service.wire import Answer, Chunk, Ending, Failure, ModelCard, Snapshot, Status, Work

_VOCAB = 1000
_PROMPT = 8


class ClockDeployment:
    """One replica. Every request is decoded to its limit."""

    async def __init__(self, settings: Settings) -> None:
        context = serve.get_replica_context()
        self._name = f"{context.deployment}-{context.replica_id.unique_id}"
        self._engine = ClockEngine(Speed.load(Path(settings.model)), settings.max_running)
        self._card = card(settings, self._engine.speed.block_size)
        self._registry = full_registry()
        self._counted = self._in_flight = 0
        self._links = await LinkServer.start(self, ray.util.get_node_ip_address()) if settings.links else None

    async def complete(self, work: Work) -> Answer | Failure:
        """The whole answer."""
        [answer] = [
            Answer(chunk.text, chunk.token_ids, chunk.ending)
            async for chunk in self._decode(work, work.max_new_tokens)
            if chunk.ending is not None
        ]
        return answer

    def stream(self, work: Work) -> AsyncGenerator[Chunk | Ending | Failure]:
        """The answer block by block."""
        return self._decode(work, self._card.block_size)

    async def count(self, work: Work) -> int | Failure:  # noqa: ARG002 - the interface of a replica
        """Every prompt has as many tokens."""
        return _PROMPT

    async def status(self) -> Status:
        """The replica can always generate."""
        return Status(self._name, None, self._card, self._links.address if self._links else None)

    async def snapshot(self) -> Snapshot:
        """The current metrics. Metrics that the simulation does not drive are constant."""
        engine = self._engine
        engine.advance()
        tokens, self._counted = int(engine.tokens) - self._counted, int(engine.tokens)
        self._registry.add("generation_tokens_total", tokens, mode="speculative")
        self._registry.set("num_requests_running", len(engine.running))
        self._registry.set("num_requests_waiting", len(engine.waiting))
        return Snapshot(self._name, self._in_flight, self._registry.families(self._name))

    async def check_health(self) -> None:
        """The replica is always healthy."""

    async def _decode(self, work: Work, every: int) -> AsyncGenerator[Chunk]:
        waited_s, index, first = work.arrived.waited_s(), 0, None
        self._in_flight += 1
        try:
            async with aclosing(self._engine.decode(work.max_new_tokens, every)) as events:
                async for job, told, at in events:
                    first = first or waited_s + at - job.came
                    stats = _stats(job, told, waited_s, (first, waited_s + at - job.came))
                    yield _chunk(index, told - index * every, stats, told == work.max_new_tokens)
                    index += 1
        finally:
            self._in_flight -= 1


def card(settings: Settings, block_size: int) -> ModelCard:
    """The replica's model card."""
    return ModelCard(
        name=settings.model_name,
        block_size=block_size,
        vocab_size=_VOCAB,
        max_model_len=1 << 20,
        mrp=None,
        modes=("static",),
        default_mode="static",
        defaults={"static": {"tokens_per_step": 1}},
        chat=True,
        quality=Presets({"lossless": (Band(mode="static"),)}),
        places=settings.places,
    )


def full_registry() -> Registry:
    """The metrics of a replica that has served requests of every mode, so that a page has its full length."""
    registry = Registry("replica")
    labels = {"mode": tuple(MODES), "finished_reason": ("stop", "length"), "source": ("mrp", "backbone")}
    labels |= {"kind": ("prefill", "denoise", "verify", "commit", "mrp"), "position": tuple("0123")}
    for metric in METRICS:
        if metric.where != "replica" or metric.kind == "gauge":
            continue
        act = registry.add if metric.kind == "counter" else registry.observe
        combinations: list[dict[str, str]] = [{}]
        for label in metric.labels:
            combinations = [{**one, label: value} for one in combinations for value in labels[label]]
        for one in combinations:
            act(metric.name, 0.0, **one)
    return registry


def _stats(job: Job, told: int, waited_s: float, times: tuple[float, float]) -> Stats:
    queue_s = waited_s + (job.began or job.came) - job.came
    return Stats(ForwardCounts(denoise=job.steps), told, queue_s=queue_s, first_block_s=times[0], total_s=times[1])


def _chunk(index: int, count: int, stats: Stats, last: bool) -> Chunk:
    tokens = tuple(range(10, 10 + count))
    ending = Ending("length", _PROMPT, stats.decoded_tokens, stats) if last else None
    return Chunk(index, "word" * count, tokens, stats, ending=ending)
