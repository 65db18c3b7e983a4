"""Starts a replica: its engine where the setting `engine` says, and what answers with it.

The tokenizer's libraries take a second to import. An engine in a process of its own loads meanwhile.
"""

from __future__ import annotations

import asyncio
from importlib import import_module
from typing import TYPE_CHECKING

from service.replica.metrics import ReplicaMetrics
from service.replica.remote import RemoteEngine
from service.settings import Settings
from service.telemetry.tracing import start_tracing

if TYPE_CHECKING:
    from service.engine import EngineDeps
    from service.replica.generator import Generator


async def start_generator(replica: str, settings: Settings, deps: EngineDeps | None = None) -> Generator:
    """Loads the engine. `replica`: its name in metrics. Raises what loading raises."""
    if settings.engine == "thread":
        from service.model.options import set_threads

        set_threads(settings.torch_threads, settings.tensor_parallel_size)
        return await asyncio.to_thread(load_generator, replica, settings, deps)
    metrics = ReplicaMetrics()
    starting = asyncio.create_task(RemoteEngine.start(settings, metrics.put, deps))
    await asyncio.to_thread(import_module, "service.replica.generator")
    engine = await starting
    try:
        from service.replica.generator import Generator

        return Generator(replica, engine, metrics, settings, start_tracing(settings))
    except BaseException:
        engine.close()
        raise


def load_generator(replica: str, settings: Settings, deps: EngineDeps | None = None) -> Generator:
    """Loads the engine into this process. Blocks until the weights are read."""
    from service.replica.core import load_core
    from service.replica.generator import Generator
    from service.replica.local import LocalEngine

    metrics = ReplicaMetrics()
    engine = LocalEngine(load_core(settings, metrics, deps), settings.stall_timeout_s)
    return Generator(replica, engine, metrics, settings, start_tracing(settings))
