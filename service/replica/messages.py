"""The messages between a replica and the process of its engine."""

from __future__ import annotations

from pathlib import Path

import msgspec

from service.constraints import Constraint
from service.engine import EngineState, GenerationRequest
from service.engine.streams import EngineOutput
from service.errors import MrpServeError
from service.ipc.data import Data
from service.ipc.messagepack import MessagePack
from service.model import ModelConfig
from service.model.config import CheckedUpdate
from service.telemetry.metrics import SumsData

# --- to the engine's process -----------------------------------------------------------------------


class Start(Data, frozen=True, tag=1):
    """The first message: load the checkpoint of these settings, which `Settings.to_json` wrote."""

    settings: str


class Submit(Data, frozen=True, tag=2):
    """A request without a grammar. The engine's process compiles the `constraint` of its answer."""

    request: GenerationRequest
    constraint: Constraint | None = None


class Abort(Data, frozen=True, tag=3):
    """Aborts a request."""

    request_id: str


class CheckWeights(Data, frozen=True, tag=1):
    """Checks whether the engine could serve the weights of these folders. `partial`: as in `check_update`."""

    folders: tuple[str, ...]
    partial: bool


class LoadWeights(Data, frozen=True, tag=2):
    """Loads new weights beside the served ones. `newest_only`: only those of the last folder."""

    folders: tuple[str, ...]
    newest_only: bool


class ApplyWeights(Data, frozen=True, tag=3):
    """Replaces the served weights by the loaded ones. `abort`: running requests end; else they finish first.

    `version`, `mrp_version`: the versions of the new weights, and of MRP among them.
    """

    version: int
    mrp_version: int
    abort: bool


class SetGeneration(Data, frozen=True, tag=4):
    """Pauses or resumes the engine, puts it to sleep or wakes it up. The first fields are `GenerationState`'s.

    `wait`: running requests finish before a pause. `folders`: the folders of the served weights.
    """

    paused: bool
    sleep_level: int
    wait: bool
    folders: tuple[str, ...]


Procedure = CheckWeights | LoadWeights | ApplyWeights | SetGeneration


class EngineCall(Data, frozen=True, tag=4):
    """The call of a procedure. Its `EngineReply` has the same number."""

    number: int
    procedure: Procedure


# --- from the engine's process ---------------------------------------------------------------------


class EngineInfo(Data, frozen=True):
    """The served model and its limits. `folder`: the checkpoint's folder. `max_model_len`: tokens of prompt and answer.

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


class EngineReady(Data, frozen=True, tag=1):
    """The engine is loaded and takes requests."""

    info: EngineInfo


class EngineStartFailed(Data, frozen=True, tag=2):
    """The engine could not be loaded, and its process ends."""

    error: MrpServeError


class StepOutputs(Data, frozen=True, tag=3):
    """The items of requests since the last message, and the engine's state.

    `finished`: requests that the engine no longer has, aborted ones included. `failure`: why the engine has stopped,
    None if it has not. `sums`: encoded metrics (`encode_sums`), empty if they come with a later message.
    """

    items: list[EngineOutput]
    finished: list[str]
    state: EngineState
    failure: str | None = None
    sums: bytes = b""


class Compiled(Data, frozen=True, tag=4):
    """A request's constraint is compiled. The engine has the request from now on."""

    request_id: str


class EngineAlive(Data, frozen=True, tag=5):
    """The process runs. Sent when there is nothing else to send."""


class EngineReply(Data, frozen=True, tag=6):
    """The result of an `EngineCall`. `path`: the folder of loaded weights. `checked`: the result of `CheckWeights`."""

    number: int
    error: MrpServeError | None = None
    path: str = ""
    checked: CheckedUpdate | None = None


#: the codecs of the two ends, by the messages that come there
AT_ENGINE = MessagePack(Start | Submit | Abort | EngineCall)
AT_REPLICA = MessagePack(EngineReady | EngineStartFailed | StepOutputs | Compiled | EngineAlive | EngineReply)

#: Sums are decoded later than the items beside them, since answers go first.
encode_sums = msgspec.msgpack.Encoder().encode
decode_sums = msgspec.msgpack.Decoder(SumsData).decode
