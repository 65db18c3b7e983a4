"""The engine of a replica as the replica's event loop sees it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Protocol

from service.constraints import Constraint
from service.data import Data
from service.engine.observer import EngineState
from service.engine.request import BlockEvent, BlockProgress, GenerationRequest
from service.model import ModelConfig


class EngineInfo(Data, frozen=True):
    """The served model and its limits. `folder`: the checkpoint's. `max_model_len`: prompt and answer, in tokens.

    `activation_parts`: as in `Checkpoint`. `deterministic`: whether answers may not depend on the load.
    """

    folder: str
    config: ModelConfig
    activation_parts: int
    max_model_len: int
    max_running: int
    deterministic: bool

    @property
    def path(self) -> Path:
        """The checkpoint's folder."""
        return Path(self.folder)


class EngineClient(Protocol):
    """A running engine: `EngineProcessClient` in the service."""

    @property
    def info(self) -> EngineInfo:
        """The served model and its limits."""

    @property
    def failure(self) -> str | None:
        """Why the engine cannot decode. None while it can."""

    def state(self) -> EngineState:
        """The numbers of requests and pages after the last step."""

    def generate(
        self, request: GenerationRequest, constraint: Constraint | None = None
    ) -> AsyncGenerator[BlockEvent | BlockProgress]:
        """The request's block events, and its steps if it asks for them. The last item has a finish reason.

        `constraint`: what the answer must be; the request waits in the engine's process for its grammar. Closing the
        generator aborts the request. Raises what `validate`, `GrammarCompiler.compile` and `EngineThread.submit` raise;
        ReplicaStopping if the engine stops; EngineFailed; OutOfMemory if the device has no memory for this request.
        """

    async def check(self, model: str) -> None:
        """Whether the engine could take other weights. Raises what `model.weight_update.check_update` raises."""

    async def fetch(self, model: str) -> Path:
        """Reads other weights beside the served ones. Returns their folder. Raises what `check` raises."""

    async def take(self, version: int, *, cut: bool) -> None:
        """Puts the loaded weights in the place of the served ones, as `EngineThread.exchange`."""

    def close(self) -> None:
        """Stops the engine. Requests in progress end with ReplicaStopping."""
