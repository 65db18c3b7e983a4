"""The messages between a replica and the process of its engine."""

from __future__ import annotations

import msgspec

from service.constraints import Constraint
from service.data import Data
from service.engine import EngineState, GenerationRequest
from service.engine.streams import EngineOutput
from service.errors import MrpServeError
from service.messagepack import MessagePack
from service.replica.engines import EngineInfo
from service.telemetry.sums import Added

# --- to the engine's process -----------------------------------------------------------------------


class Start(Data, frozen=True, tag=1):
    """The first message: what to load. `settings`: as `Settings.to_json` writes them."""

    settings: str


class Submit(Data, frozen=True, tag=2):
    """A request without a grammar. The engine's process compiles the `constraint` of its answer."""

    request: GenerationRequest
    constraint: Constraint | None = None


class Abort(Data, frozen=True, tag=3):
    """A request is no longer wanted."""

    request_id: str


class CheckWeights(Data, frozen=True, tag=1):
    """Could the engine take these weights?"""

    model: str


class LoadWeights(Data, frozen=True, tag=2):
    """Reads other weights beside the served ones."""

    model: str


class ApplyWeights(Data, frozen=True, tag=3):
    """The loaded weights take the place of the served ones. `cut`: running requests end; else they finish first."""

    version: int
    cut: bool


Procedure = CheckWeights | LoadWeights | ApplyWeights


class Call(Data, frozen=True, tag=4):
    """A procedure. Its `Reply` has the same number."""

    number: int
    procedure: Procedure


# --- from the engine's process ---------------------------------------------------------------------


class Ready(Data, frozen=True, tag=1):
    """The engine is loaded and takes requests."""

    info: EngineInfo


class StartFailed(Data, frozen=True, tag=2):
    """The engine could not be loaded, and its process ends."""

    error: MrpServeError


class StepOutputs(Data, frozen=True, tag=3):
    """The items of requests since the last message, and the engine's state.

    `finished`: requests that the engine no longer has, aborted ones included. `failure`: why the engine has stopped,
    None if it has not. `counted`: encoded metrics (`encode_counts`), empty if they come with a later message.
    """

    items: list[EngineOutput]
    finished: list[str]
    state: EngineState
    failure: str | None = None
    counted: bytes = b""


class Compiled(Data, frozen=True, tag=4):
    """A request's constraint is compiled. The engine has the request from now on."""

    request_id: str


class Alive(Data, frozen=True, tag=5):
    """The process runs. Sent when there is nothing else to send."""


class Reply(Data, frozen=True, tag=6):
    """The result of a `Call`. `path`: the folder of loaded weights."""

    number: int
    error: MrpServeError | None = None
    path: str = ""


#: the codecs of the two ends, by the messages that come there
AT_ENGINE = MessagePack(Start | Submit | Abort | Call)
AT_REPLICA = MessagePack(Ready | StartFailed | StepOutputs | Compiled | Alive | Reply)

#: Counts are decoded later than the items beside them, since answers go first.
encode_counts = msgspec.msgpack.Encoder().encode
decode_counts = msgspec.msgpack.Decoder(Added).decode
