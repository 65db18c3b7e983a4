"""Starts a replica: its engine's process, and what answers with it.

The tokenizer's libraries take a second to import. The engine's process loads the checkpoint meanwhile.
"""

from __future__ import annotations

import asyncio
from importlib import import_module
from typing import TYPE_CHECKING

from service.replica.metrics import ReplicaMetrics
from service.replica.remote import EngineProcessClient
from service.settings import Settings
from service.telemetry.tracing import start_tracing

if TYPE_CHECKING:
    from service.replica.replica import Replica


async def start_replica(replica: str, settings: Settings, deps: str = "") -> Replica:
    """Loads the engine. `replica`: its name in metrics. `deps`: as in `EngineProcessClient.start`.

    Raises what loading raises.
    """
    metrics = ReplicaMetrics()
    starting = asyncio.create_task(EngineProcessClient.start(settings, metrics.put, deps))
    await asyncio.to_thread(import_module, "service.replica.replica")
    engine = await starting
    try:
        from service.replica.replica import Replica

        return Replica(replica, engine, metrics, settings, start_tracing(settings))
    except BaseException:
        engine.close()
        raise
