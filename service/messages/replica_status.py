"""The data of replicas that crosses by Ray: status, model card, metrics, and changes with their results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from service.decode.knobs import KnobValue
from service.errors import MrpServeError
from service.ipc.data import Data
from service.messages.wire import Weights
from service.quality.presets import Presets
from service.text.tools.formats import ReasoningFormat


class GenerationState(Data, frozen=True):
    """Whether replicas generate. `number`: every change has a higher one, and the highest counts; 0 at the start.

    `paused`: requests stay as they are. `sleep_level`: 1: the KV cache has no memory; 2: the weights have none, either.
    """

    number: int = 0
    paused: bool = False
    sleep_level: int = 0

    @property
    def stands(self) -> bool:
        """Whether no request makes progress."""
        return self.paused or self.sleep_level > 0

    def older_than(self, other: GenerationState) -> bool:
        """Whether `other` is newer. Of two states of one number, every process takes the same for newer."""
        return (self.number, self.paused, self.sleep_level) < (other.number, other.paused, other.sleep_level)


@dataclass(frozen=True, slots=True)
class Example:
    """A prompt from the checkpoint's card: a chat (`messages`) or a text to continue (`text`)."""

    title: str
    text: str | None = None
    messages: tuple[Mapping[str, str], ...] | None = None


@dataclass(frozen=True, slots=True)
class ModelCard:
    """The served model, for clients and the ingress.

    `name`: its name in answers. `aliases`: further names that requests may use. `any_name`: whether any name will do.
    `created`: the time of the checkpoint's configuration file, in seconds since 1970.
    `quality`: the presets of the checkpoint. `examples`: prompts of its card. `slots`: requests that a replica takes
    at once; on the card of the service, the sum over all replicas. `replica_slots`: the slots of one replica, on either
    card. `tool_format`: the format of its tool calls; None if it cannot call tools, with the reason in
    `tools_problem`. `thinking`: the format of its reasoning, None if it does not reason.
    `weights`: the weights that answer. `num_outdated`: the number of the service's replicas that have older weights.
    """

    name: str
    block_size: int
    vocab_size: int
    max_model_len: int
    mrp: Mapping[str, Any] | None
    modes: tuple[str, ...]
    default_mode: str
    defaults: Mapping[str, Mapping[str, KnobValue]]
    chat: bool
    quality: Presets
    examples: tuple[Example, ...] = ()
    slots: int = 1
    replica_slots: int = 1
    tool_format: str | None = None
    tools_problem: str = "this checkpoint has no chat template"
    thinking: ReasoningFormat | None = None
    weights: Weights = Weights()
    num_outdated: int = 0
    created: int = 0
    aliases: tuple[str, ...] = ()
    any_name: bool = False

    def has_name(self, name: str) -> bool:
        """Whether a request may call the model by this name."""
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
    """The state of a replica. `failure`: why it cannot generate, None if it can. `card`: the served model.

    `address`: the address of its links; None before it takes any. `generation`: whether it generates. A replica that
    is paused or asleep is healthy, and takes requests.
    """

    replica: str
    failure: str | None
    card: ModelCard
    address: Address | None = None
    generation: GenerationState = field(default_factory=GenerationState)


@dataclass(frozen=True, slots=True)
class GenerationResult:
    """The result of a change at one replica. `generation`: its state now. `seconds`: the duration.

    `error`: why it has not changed; None if it has.
    """

    replica: str
    generation: GenerationState
    seconds: float = 0.0
    error: MrpServeError | None = None


@dataclass(frozen=True, slots=True)
class WeightUpdateResult:
    """The result of a weight update at one replica. `weights`: the weights that it serves now. `seconds`: the duration.

    `error`: why it still serves other weights; None if it does not.
    """

    replica: str
    weights: Weights
    seconds: float = 0.0
    error: MrpServeError | None = None
