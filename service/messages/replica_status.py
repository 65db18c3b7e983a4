"""The data of replicas that crosses by Ray: status, model card, metrics, and control commands with their results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from service.decode.knobs import KnobValue
from service.errors import CacheResetFailed, GenerationChangeFailed, MrpServeError, WeightUpdateFailed
from service.ipc.data import Data
from service.messages.wire import Weights
from service.quality.presets import Presets
from service.text.tools.formats import ReasoningFormat


class PauseState(Data, frozen=True):
    """Whether replicas are paused or asleep."""

    number: int = 0  # every change has a higher one, and the highest counts; 0 at the start
    paused: bool = False  # requests stay as they are
    sleep_level: int = 0  # 1: the KV cache has no memory; 2: the weights have none, either

    @property
    def halted(self) -> bool:
        return self.paused or self.sleep_level > 0

    def older_than(self, other: PauseState) -> bool:
        """Whether `other` is newer. Of two states of one number, every process takes the same for newer."""
        return (self.number, self.paused, self.sleep_level) < (other.number, other.paused, other.sleep_level)


class CheckWeights(Data, frozen=True, tag=1):
    """Checks whether a replica could serve these weights. The result has the needed folders, and MRP's version."""

    failed: ClassVar[type[MrpServeError]] = WeightUpdateFailed

    weights: Weights


class UpdateWeights(Data, frozen=True, tag=2):
    """Makes a replica serve these weights, unless it serves them or newer ones."""

    failed: ClassVar[type[MrpServeError]] = WeightUpdateFailed

    weights: Weights


class SetPause(Data, frozen=True, tag=3):
    """Makes a replica pause, continue, sleep or wake up, unless it has the state or a newer one."""

    failed: ClassVar[type[MrpServeError]] = GenerationChangeFailed

    state: PauseState
    wait: bool = False  # running requests finish before a pause


class ResetPrefixCache(Data, frozen=True, tag=5):
    """Makes a replica forget the written blocks that no running request holds."""

    failed: ClassVar[type[MrpServeError]] = CacheResetFailed


#: A command for every replica. Only the ingress's routes and the engine's process know the kinds. `failed`: the error
#: of a command that not all replicas could carry out.
ControlCommand = CheckWeights | UpdateWeights | SetPause | ResetPrefixCache


@dataclass(frozen=True, slots=True)
class ControlResult:
    """The result of a command at one replica."""

    replica: str
    weights: Weights  # the weights that it serves now; after a check, those that it could serve
    pause: PauseState = PauseState()
    seconds: float = 0.0  # the duration
    error: MrpServeError | None = None  # why the replica is as it was; None if the command succeeded


@dataclass(frozen=True, slots=True)
class Example:
    """A prompt from the checkpoint's card: a chat (`messages`) or a text to continue (`text`)."""

    title: str
    text: str | None = None
    messages: tuple[Mapping[str, str], ...] | None = None


@dataclass(frozen=True, slots=True)
class ModelCard:
    """The served model, for clients and the ingress."""

    name: str  # its name in answers
    block_size: int
    vocab_size: int
    max_model_len: int
    mrp: Mapping[str, Any] | None
    modes: tuple[str, ...]
    default_mode: str
    defaults: Mapping[str, Mapping[str, KnobValue]]
    chat: bool
    quality: Presets  # the presets of the checkpoint
    examples: tuple[Example, ...] = ()  # prompts of the checkpoint's card
    slots: int = 1  # requests that a replica takes at once; on the card of the service, the sum over all replicas
    replica_slots: int = 1  # the slots of one replica, on either card
    tool_format: str | None = None  # the format of its tool calls; None if it cannot call tools
    tools_problem: str = "this checkpoint has no chat template"  # why it cannot
    thinking: ReasoningFormat | None = None  # the format of its reasoning; None if it does not reason
    weights: Weights = Weights()  # the weights that answer
    num_outdated: int = 0  # the number of the service's replicas that have older weights
    created: int = 0  # the time of the checkpoint's configuration file, in seconds since 1970
    aliases: tuple[str, ...] = ()  # further names that requests may use
    any_name: bool = False  # whether any name will do

    def has_name(self, name: str) -> bool:
        return self.any_name or name == self.name or name in self.aliases


@dataclass(frozen=True, slots=True)
class Family:
    """One metric of one process as Prometheus text. `head`: its help and type lines. `samples`: its sample lines.

    Each process writes its own text, so an ingress only has to join the texts of many replicas.
    """

    name: str
    head: str
    samples: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The metrics of one process. `in_flight`: its requests in progress."""

    replica: str
    in_flight: int
    families: tuple[Family, ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Address:
    """The address at which a replica takes links (`service/link`). `secret`: an ingress must prove that it has it."""

    host: str
    port: int
    secret: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Status:
    """The state of a replica. One that is paused or asleep is healthy, and takes requests."""

    replica: str
    failure: str | None  # why it cannot generate; None if it can
    card: ModelCard  # the served model
    address: Address | None = None  # the address of its links; None before it takes any
    pause: PauseState = PauseState()
    reachable: bool = True  # whether the ingress can send it a request; set by the ingress


def outdated(healthy: Sequence[Status]) -> set[str]:
    """The replicas with older weights than another one of the same base."""
    served = [status.card.weights for status in healthy]
    return {status.replica for status in healthy if any(map(status.card.weights.older_than, served))}


def resting(healthy: Sequence[Status]) -> set[str]:
    """The replicas that requests should not go to: with older weights, or still paused or asleep after others went on.

    If that is all of them, those with the newest weights get the requests.
    """
    newest = PauseState()
    for status in healthy:
        newest = status.pause if newest.older_than(status.pause) else newest
    halted = {status.replica for status in healthy if status.pause.halted and not newest.halted}
    behind = outdated(healthy)
    return behind | halted if len(behind | halted) < len(healthy) else behind
