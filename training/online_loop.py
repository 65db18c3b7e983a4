"""The turns of learning while serving: takes finished requests, updates MRP, judges it, and publishes what is better.

`training/deployment.py` runs it beside a service. Tests run it with doubles of both sides. It knows no Ray and no HTTP.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from service.errors import MrpServeError
from service.messages.finished import FinishedRequest, FinishedRequests
from service.messages.wire import Weights
from service.telemetry.metrics import Registry

if TYPE_CHECKING:
    from training.online import OnlineTrainer, Sample

_log = logging.getLogger(f"service.{__name__}")  # only lines of `service.*` are shown (telemetry/logs.py)

#: seconds of updates in a turn; before the next one the load is looked at
_TURN_S = 1.0
#: While requests come, updates pause for so many times their duration: even idle CPU time costs a service its caches.
_YIELD = 2.0
#: updates between two judgements
_UPDATES = 32
#: A weight update waits for running requests. The next one comes after this many times its duration, at the earliest:
#: it then takes 2 % of the time.
_REST = 50.0
#: the newest versions of MRP that metrics tell apart
_VERSIONS = 8
#: the outcomes of a better candidate
_OUTCOMES = ("published", "refused")

_T = TypeVar("_T")


class ServedModel(Protocol):
    """The replicas of the service."""

    async def take_finished(self) -> list[FinishedRequests]:
        """What each replica that answers has finished since the last call."""

    async def publish(self, folder: Path, version: int) -> Weights:
        """Makes all replicas serve the weights in a folder. Raises the errors of `ServiceWeights.update`."""


class OnlineLoop:
    """Learns MRP for one service.

    `load`: makes the learner of the weights that are served. `folder`: of the versions. `clock`: in seconds.
    """

    def __init__(
        self,
        service: ServedModel,
        load: Callable[[Weights], OnlineTrainer],
        folder: Path,
        registry: Registry,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._service, self._load, self._folder, self._registry, self._clock = service, load, folder, registry, clock
        self._weights = Weights()
        self._learner: OnlineTrainer | None = None
        self._unjudged, self._rests_until, self._yields_until = 0, clock(), clock()
        self._versions: list[str] = []
        self._thread = ThreadPoolExecutor(1, "learn", initializer=_yield_to_others)
        registry.start("online_versions_total", outcome=_OUTCOMES)

    async def turn(self) -> None:
        """Learns for about a second from what replicas have finished, unless the load comes first."""
        taken = await self._service.take_finished()
        if not taken:
            return
        requests = [request for part in taken for request in part.requests]
        self._count(requests)
        served = max((part.weights for part in taken), key=lambda weights: (weights.version, weights.model))
        learner = await self._learner_of(served)
        await self._run(lambda: learner.add(map(_sample, requests)))
        if any(part.num_waiting for part in taken) or (requests and self._clock() < self._yields_until):
            return
        began = self._clock()
        while learner.is_ready and self._clock() < began + _TURN_S:
            await self._run(learner.update)
            self._registry.add("online_updates_total")
            self._unjudged += 1
        self._yields_until = self._clock() + _YIELD * (self._clock() - began)
        if self._unjudged >= _UPDATES and self._clock() >= self._rests_until:
            self._unjudged = 0
            if await self._is_better(learner):
                await self._publish(learner)

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _learner_of(self, served: Weights) -> OnlineTrainer:
        """The learner of the served weights: a new one after an update by others."""
        if self._learner is None or served != self._weights:
            self._learner, self._unjudged = None, 0
            self._learner = await self._run(lambda: self._load(served))
            self._weights = served
        return self._learner

    async def _is_better(self, learner: OnlineTrainer) -> bool:
        judgement = await self._run(learner.judge)
        self._registry.set("online_served_accepted_per_forward", judgement.served)
        self._registry.set("online_trained_accepted_per_forward", judgement.candidate)
        return judgement.is_better

    async def _publish(self, learner: OnlineTrainer) -> None:
        """Publishes the trained weights. If they are refused, learning begins anew from those that are served."""
        before, began = self._weights, self._clock()
        folder = Path(tempfile.mkdtemp(prefix=f"version-{before.version + 1}-", dir=self._folder))
        await self._run(lambda: learner.write(folder))
        try:
            self._weights = await self._service.publish(folder, before.version + 1)
        except MrpServeError as error:
            await self._run(learner.reset)
            self._registry.add("online_versions_total", outcome="refused")
            _log.warning("a version of MRP is not served: %s", error.message)
        else:
            await self._run(learner.adopt)
            self._registry.add("online_versions_total", outcome="published")
            self._remove_all_but({*before.all_folders, *self._weights.all_folders})
        now = self._clock()
        self._rests_until = now + _REST * (now - began)

    def _remove_all_but(self, needed: Iterable[str]) -> None:
        for folder in self._folder.glob("version-*"):
            if str(folder) not in needed:
                shutil.rmtree(folder, ignore_errors=True)

    def _count(self, requests: Iterable[FinishedRequest]) -> None:
        """Counts what MRP's drafts have brought, by version. Series of old versions end."""
        for request in requests:
            self._registry.add("online_requests_total")
            if not (stats := request.stats).mrp_steps:
                continue
            version = str(stats.mrp_version)
            forwards = stats.forwards.denoise + stats.forwards.verify
            self._registry.add("online_forwards_total", forwards, version=version)
            self._registry.add("online_accepted_tokens_total", stats.drafts_accepted, version=version)
            if version not in self._versions:
                self._versions = sorted([*self._versions, version], key=int)
        while len(self._versions) > _VERSIONS:
            oldest = self._versions.pop(0)
            for name in ("online_forwards_total", "online_accepted_tokens_total"):
                self._registry.remove(name, version=oldest)

    async def _run(self, work: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)


def _sample(request: FinishedRequest) -> Sample:
    from training.online import Sample

    return Sample(request.token_ids, request.prompt_tokens, request.owner)


def _yield_to_others() -> None:
    """Gives this thread only the time of CPUs that nothing else wants, where the system can."""
    if hasattr(os, "SCHED_IDLE"):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    else:
        os.nice(19)
