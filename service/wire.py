"""What crosses from the ingress to a replica and back: plain frozen data, picklable.

The ingress sends `Work`; a replica answers `Answer | Failure`, or a stream of `Chunk`s whose last one has an
`Ending`, or that ends with a bare `Ending` or a `Failure`. Times in statistics count from
the arrival at the ingress. Knows no HTTP, no Ray and no tensors.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from typing import Any

from service.arrival import Arrival
from service.decode.knobs import KnobValue
from service.decode.params import ModeParams
from service.engine.request import FinishReason, SamplingParams, Stats
from service.errors import DeadlineExceeded, MrpServeError
from service.fair_queue import DEFAULT_PRIORITY
from service.quality.presets import Presets
from service.text.piece import TokenPiece


@dataclass(frozen=True, slots=True)
class Origin:
    """The client's request that a `Work` comes from: the id its log lines have, and its trace, as W3C's headers."""

    request_id: str = ""
    trace: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Resume:
    """What other replicas have delivered of an answer, in whole blocks: its tokens and its statistics by then."""

    token_ids: tuple[int, ...] = field(default=(), repr=False)
    num_blocks: int = 0
    stats: Stats = Stats()


@dataclass(frozen=True, slots=True)
class Work:
    """One validated request. Exactly one of `text`, `token_ids`, `messages` is set.

    What it was asked and what it answers is left out of `repr`, which may get into a log.

    `arrived`: when it came to the ingress. `timeout_s` and the times in the statistics count from there, the time in
    queues included. `stop_token_ids` are added to the checkpoint's eos. `tenant`: whose
    API key it came with, by name; `weight`: that key's share. `cache_salt`: only works of the same one share cached
    prompts, and it holds the key's name unless keys share. `session`: works of the same one are best sent to the
    same replica. `resume`: the answer's beginning, which is not to be sent again; `attempt`: how many were lost.
    """

    request_id: str
    params: ModeParams
    sampling: SamplingParams
    max_new_tokens: int
    timeout_s: float
    arrived: Arrival
    text: str | None = field(default=None, repr=False)
    token_ids: tuple[int, ...] | None = field(default=None, repr=False)
    messages: tuple[Mapping[str, str], ...] | None = field(default=None, repr=False)
    stop: tuple[str, ...] = field(default=(), repr=False)
    stop_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    return_trace: bool = False
    return_pieces: bool = False
    cache_salt: str = ""
    priority: int = DEFAULT_PRIORITY
    tenant: str = ""
    weight: float = 1.0
    session: str = ""
    origin: Origin = Origin()
    resume: Resume = Resume()
    attempt: int = 0


def too_late(work: Work) -> DeadlineExceeded:
    """What is said when a work's time was up before anything of it, or nothing more, was decoded."""
    what = "no replica went on by then" if work.resume.num_blocks else "nothing was decoded by then"
    return DeadlineExceeded(f"timeout_s is {work.timeout_s}, {what}", param="timeout_s")


@dataclass(frozen=True, slots=True)
class Ending:
    """Why and with which statistics an answer ended."""

    finish_reason: FinishReason
    prompt_tokens: int
    completion_tokens: int
    stats: Stats


@dataclass(frozen=True, slots=True)
class Chunk:
    """One finished block: what it adds to the answer, the statistics so far, its history if asked for.

    `ending` comes with the last one, so that nobody ever has the whole answer without knowing it: every
    chunk without it ends at the end of a block, where another replica can go on.
    """

    index: int
    text: str = field(repr=False)
    token_ids: tuple[int, ...] = field(repr=False)
    stats: Stats
    trace: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)
    ending: Ending | None = None
    pieces: tuple[TokenPiece, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer; its text and tokens are those of its chunks in order."""

    text: str = field(repr=False)
    token_ids: tuple[int, ...] = field(repr=False)
    ending: Ending
    trace: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)
    pieces: tuple[TokenPiece, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class Failure:
    """The request failed with an error of ours, which the ingress puts on the wire."""

    error: MrpServeError


@dataclass(frozen=True, slots=True)
class ModelCard:
    """What a client, and the ingress, must know of the model a replica serves.

    `quality`: what its presets are. `places`: requests the replica takes at once; on the card of the service, those of
    all replicas together.
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
    places: int = 1


@dataclass(frozen=True, slots=True)
class Family:
    """One metric of one process as Prometheus text: the lines of its help and type, those of its samples.

    Written where it is counted: an ingress has only to put together what many replicas say.
    """

    name: str
    head: str
    samples: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The metrics of one process, and how many requests it has in hand."""

    replica: str
    in_flight: int
    families: tuple[Family, ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Status:
    """Whether a replica can generate: `failure` says why not. `card` is what it serves."""

    replica: str
    failure: str | None
    card: ModelCard


#: what a replica's stream brings: at its end an `Ending`, by itself or in the last chunk, or a `Failure`
Items = AsyncGenerator[Chunk | Ending | Failure]
#: what is left of it once failures are raised as errors
Answering = AsyncGenerator[Chunk | Ending]
