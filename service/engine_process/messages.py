"""The messages between a replica and the process of its engine."""

from pathlib import Path

import msgspec

from service.constraints import Constraint
from service.engine import EngineState, GenerationRequest
from service.engine.streams import EngineOutput
from service.errors import MrpServeError
from service.ipc.data import Data
from service.ipc.messagepack import MessagePack
from service.messages.replica_status import ControlCommand, PauseState
from service.messages.wire import Weights
from service.model import ModelConfig
from service.telemetry.metrics import SumsData


class Submit(Data, frozen=True, tag=1):
    """A request without a grammar. The engine's process compiles the `constraint` of its answer."""

    request: GenerationRequest
    constraint: Constraint | None = None


class Abort(Data, frozen=True, tag=2):
    """Aborts a request."""

    request_id: str


class Start(Data, frozen=True, tag=4):
    """The command of the first call: load the checkpoint of these settings, which `Settings.to_json` wrote."""

    settings: str


class EngineCall(Data, frozen=True, tag=3):
    """A command. Its `EngineReply` has the same number."""

    number: int
    command: Start | ControlCommand


class EngineInfo(Data, frozen=True):
    """The served model and its limits."""

    folder: str  # the checkpoint's folder
    config: ModelConfig
    activation_parts: int  # as in `Checkpoint`
    max_model_len: int  # tokens of prompt and answer
    max_running: int
    deterministic: bool  # whether answers may not depend on the load
    weights: Weights  # the weights of the start

    @property
    def path(self) -> Path:
        return Path(self.folder)


class StepOutputs(Data, frozen=True, tag=1):
    """The items of requests since the last message, and the engine's state."""

    items: list[EngineOutput]
    finished: list[str]  # requests that the engine no longer has, aborted ones included
    state: EngineState
    failure: str | None = None  # why the engine has stopped
    sums: bytes = b""  # encoded metrics (`encode_sums`), empty if they come with a later message


class Compiled(Data, frozen=True, tag=2):
    """A request's constraint is compiled. The engine has the request from now on."""

    request_id: str
    ignored: tuple[str, ...] = ()  # the keywords that are not enforced, as in `Constraint`


class EngineAlive(Data, frozen=True, tag=3):
    """The process runs. Sent regularly."""

    controlled: bool = False  # whether a command has the engine's thread, which may take longer than a step


class EngineReply(Data, frozen=True, tag=4):
    """The result of an `EngineCall`."""

    number: int
    error: MrpServeError | None = None
    weights: Weights | None = None  # as in `ControlResult`; None beside an error
    pause: PauseState = PauseState()
    info: EngineInfo | None = None  # after a start


#: the codecs of the two ends, by the messages that come there
AT_ENGINE = MessagePack(Submit | Abort | EngineCall)
AT_REPLICA = MessagePack(StepOutputs | Compiled | EngineAlive | EngineReply)

#: Sums are decoded later than the items beside them, since answers go first.
encode_sums = msgspec.msgpack.Encoder().encode
decode_sums = msgspec.msgpack.Decoder(SumsData).decode
