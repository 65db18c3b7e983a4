"""The engine of a replica as the event loop sees it, wherever it runs."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from service.constraints import Constraint, Owner
from service.decode.guide import GrammarSource
from service.engine.observer import EngineState
from service.engine.request import BlockEvent, BlockProgress, GenerationRequest
from service.model import ModelConfig


@dataclass(frozen=True, slots=True)
class Served:
    """What an engine serves. `path`: the checkpoint's folder. `max_model_len`: prompt and answer, in tokens.

    `activation_parts`: as in `Checkpoint`. `deterministic`: whether answers may not depend on the load.
    """

    path: Path
    config: ModelConfig
    activation_parts: int
    max_model_len: int
    max_running: int
    deterministic: bool


class ReplicaEngine(Protocol):
    """A running engine. `local.py` has it in this process, `remote.py` in one of its own."""

    @property
    def served(self) -> Served:
        """What it serves."""

    @property
    def failure(self) -> str | None:
        """Why it cannot decode. None while it can."""

    def state(self) -> EngineState:
        """What it has to do."""

    def generate(self, request: GenerationRequest) -> AsyncGenerator[BlockEvent | BlockProgress]:
        """The items of a request, as `EngineWorker.generate`."""

    async def compile(self, constraint: Constraint, owner: Owner) -> GrammarSource:
        """The grammar of a constraint, for requests of this engine. Raises what `GrammarCompiler.compile` raises."""

    async def check(self, model: str) -> None:
        """Whether it could take other weights. Raises what `service.model.weight_update.check_update` raises."""

    async def fetch(self, model: str) -> Path:
        """Reads other weights beside those that it serves. Returns their folder. Raises what `check` raises."""

    async def take(self, version: int, *, cut: bool) -> None:
        """Puts the fetched weights in the place of the served ones, as `EngineWorker.exchange`."""

    def close(self) -> None:
        """Stops it. Requests in progress end with ReplicaStopping."""
