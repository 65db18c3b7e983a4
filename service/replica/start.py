"""Starts a replica."""

from __future__ import annotations

import asyncio
from importlib import import_module
from typing import TYPE_CHECKING

from service.engine_process.client import EngineProcessClient
from service.errors import SettingsError
from service.model.config import ModelConfig
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

        if settings.online_mrp_dir is not None:
            check_learning(engine.info.config)
        return Replica(replica, engine, metrics, settings, start_tracing(settings))
    except BaseException:
        engine.close()
        raise


def check_learning(config: ModelConfig) -> None:
    """SettingsError, of `online_mrp_dir`, for a checkpoint without an MRP that can be trained."""
    if config.mrp is None:
        reason = "the checkpoint has no MRP"
    elif config.quantization is not None:
        reason = "the checkpoint's matrices have 8 bits, and MRP learns from wide ones only"
    elif config.causal:
        reason = "training does not know causal models"
    else:
        return
    raise SettingsError(f"online_mrp_dir is set, but {reason}", param="online_mrp_dir")
