"""The Serve deployment `MrpTrainer`: one process that lets MRP learn from what the service answers.

`service/app.py` binds it if `online_mrp_dir` is set. Without a GPU of its own it runs on one thread of a CPU.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle

from service.errors import MrpServeError, WeightUpdateFailed
from service.messages.finished import FinishedRequests
from service.messages.replica_status import Snapshot
from service.messages.wire import Weights
from service.rayserve.network import keep_serve_on_loopback, leave_proxies_out
from service.rayserve.ray_backend import of_all
from service.settings.settings import Settings

if TYPE_CHECKING:
    from training.online import OnlineTrainer

#: seconds between two turns
_PAUSE_S = 1.0


class TrainerDeployment:
    """The trainer of one service."""

    async def __init__(self, settings: Settings, generator: DeploymentHandle[Any]) -> None:  # type: ignore[misc]
        leave_proxies_out()
        keep_serve_on_loopback(ray.util.get_node_ip_address())
        from service.telemetry.logs import install_logs
        from service.telemetry.metrics import Registry
        from training.online_loop import OnlineLoop

        install_logs(settings)
        if (folder := settings.online_mrp_dir) is None:
            raise AssertionError("a trainer without online_mrp_dir")
        folder.mkdir(parents=True, exist_ok=True)
        context = serve.get_replica_context()
        self._name = f"{context.deployment}-{context.replica_id.unique_id}"
        self._settings, self._registry = settings, Registry("trainer")
        service = _RayService(generator, serve.get_deployment_handle("Ingress", context.app_name))
        self._loop = OnlineLoop(service, self.load, folder.resolve(), self._registry)
        self._turns = asyncio.create_task(self._run())

    def load(self, weights: Weights) -> OnlineTrainer:
        """The learner of the served weights. Runs on the learner's thread, and blocks."""
        return load_learner(self._settings, weights)

    async def snapshot(self) -> Snapshot:
        return Snapshot(self._name, 0, self._registry.families(self._name))

    async def check_health(self) -> None:
        """Serve calls this. It replaces a trainer that raises here."""
        if self._turns.done():
            self._turns.result()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(_PAUSE_S)
            await self._loop.turn()

    async def __del__(self) -> None:
        if turns := getattr(self, "_turns", None):
            turns.cancel()
            self._loop.close()


class _RayService:
    """The replicas and ingresses of the application, by Serve's handles."""

    def __init__(self, replicas: DeploymentHandle[Any], ingresses: DeploymentHandle[Any]) -> None:
        self._replicas, self._ingresses = replicas, ingresses

    async def take_finished(self) -> list[FinishedRequests]:
        try:
            return await of_all(self._replicas, "take_finished", FinishedRequests)
        except TimeoutError:  # a replica hangs; Serve will replace it
            return []

    async def publish(self, folder: Path, version: int) -> Weights:
        try:
            answer = await self._ingresses.publish_mrp.remote(str(folder), version)
        except (RayError, RayServeException) as error:
            raise WeightUpdateFailed(f"no ingress has answered: {type(error).__name__}", retry_after=1.0) from None
        if isinstance(answer, MrpServeError):
            raise answer
        weights: Weights = answer
        return weights


def load_learner(settings: Settings, weights: Weights) -> OnlineTrainer:
    """A learner of the served weights, on a GPU if this process has one. The backbone is in float32 on a CPU."""
    import torch

    from service.model import LoadOptions, load_checkpoint
    from service.model.weight_update import apply_update, load_update
    from training.online import OnlineTrainer

    torch.set_num_threads(1)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    options = LoadOptions(dtype, device, settings.block_size)
    checkpoint = load_checkpoint(settings.model, options)
    if weights.version:
        apply_update(checkpoint, load_update(weights.all_folders, checkpoint.config, options))
    return OnlineTrainer(checkpoint)
