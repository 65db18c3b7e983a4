"""Starts a replica."""

from __future__ import annotations

import asyncio
from importlib import import_module
from typing import TYPE_CHECKING

from service.engine_process.client import EngineProcessClient
from service.replica.metrics import ReplicaMetrics
from service.settings.settings import Settings
from service.telemetry.tracing import start_tracing

if TYPE_CHECKING:
    from service.replica.replica import Replica


async def start_replica(replica: str, settings: Settings, deps: str = "") -> Replica:
    """Loads the engine. Raises the errors of loading. `deps`: as in `EngineProcessClient.start`."""
    metrics = ReplicaMetrics()
    starting = asyncio.create_task(EngineProcessClient.start(settings, metrics.add_sums, deps))
    await asyncio.to_thread(import_module, "service.replica.replica")
    engine = await starting
    try:
        from service.replica.replica import Replica

        return Replica(replica, engine, metrics, settings, start_tracing(settings))
    except BaseException:
        engine.close()
        raise
