"""Control of a replica: its weights, and whether it is paused or asleep. The engine's process carries it out."""

import asyncio
import time
from dataclasses import replace

from service.engine_process.client import EngineProcessClient
from service.errors import CheckpointError, MrpServeError, SettingsError, WeightsBehind, WeightsRefused
from service.messages.replica_status import (
    ControlCommand,
    ControlResult,
    ModelCard,
    PauseState,
    SetPause,
    UpdateWeights,
)
from service.messages.wire import ReplicaRequest, Weights
from service.model.files import resolve
from service.quality.presets import Presets, presets_of
from service.settings.settings import Settings
from service.tracebacks import error_for_client


class ReplicaControl:
    """`card`: the card of the replica, with the weights that it serves. `pause`: whether it is paused or asleep."""

    def __init__(self, replica: str, card: ModelCard, engine: EngineProcessClient, settings: Settings) -> None:
        self.card, self.pause = card, PauseState()
        self._replica, self._engine, self._quality_file = replica, engine, settings.quality_file
        self._tasks: set[asyncio.Task[ControlResult]] = set()

    def check_version(self, request: ReplicaRequest) -> None:
        served, oldest = self.card.weights, request.weights
        if oldest is not None and served.older_than(oldest):
            raise WeightsBehind(
                f"this replica has weights of version {served.version}, allowed are {oldest.version} and later",
                retry_after=1.0,
            )

    async def run(self, command: ControlCommand) -> ControlResult:
        """Carries out a command. It is completed even if the caller is cancelled."""
        task = asyncio.create_task(self._result(command))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(task)

    async def _result(self, command: ControlCommand) -> ControlResult:
        weights: Weights | None = None
        error: MrpServeError | None = None
        began = time.monotonic()
        try:
            weights = await self._run(command)
        except Exception as problem:  # noqa: BLE001 - Serve would log the whole traceback
            error = error_for_client(problem, "")
            if isinstance(problem, CheckpointError | SettingsError) and not isinstance(command, SetPause):
                error = WeightsRefused(f"{problem.message}; the old weights stay", param="model")
        return ControlResult(self._replica, weights or self.card.weights, self.pause, time.monotonic() - began, error)

    async def _run(self, command: ControlCommand) -> Weights:
        """The weights of the result. A broken calibration file raises before the weights are loaded."""
        presets: Presets | None = None
        if isinstance(command, UpdateWeights) and self.card.weights.older_than(command.weights):
            folder, info = await asyncio.to_thread(resolve, command.weights.all_folders[-1]), self._engine.info
            presets = presets_of(folder, info.config, self._quality_file, info.activation_parts)
        reply = await self._engine.control(command)
        self.pause = reply.pause
        weights = reply.weights or self.card.weights
        if presets is not None and isinstance(command, UpdateWeights) and weights == command.weights:
            self.card = replace(self.card, weights=weights, quality=presets)
        return weights
