"""The data of requests and answers between an ingress and a replica: frozen values, which cross links.

The ingress sends a `ReplicaRequest`. A replica returns a stream of `Chunk`s, with `Progress` between them on request.
The stream ends with an `Ending`, in the last chunk or by itself, or with a `Failure`. Times in statistics count from
the arrival at the ingress.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from itertools import chain
from typing import Any, NotRequired

from typing_extensions import TypedDict

from service.constraints.constraint import Constraint
from service.decode.block import StepKind
from service.decode.mode import DecodingMode, ScoreMode
from service.decode.modes import Mode
from service.decode.step_map import TokenStep
from service.engine.request import FinishReason, MeasuredMode, SamplingParams, Sharing, Stats
from service.errors import DeadlineExceeded, MrpServeError
from service.ipc.data import Arrival, Data, Private
from service.text.token_text import TokenText, TopLogprob


class Origin(Data, frozen=True):
    """The client's request that a `ReplicaRequest` comes from: its id in log lines, and its trace as W3C headers."""

    request_id: str = ""
    trace: tuple[tuple[str, str], ...] = ()


class Weights(Data, frozen=True):
    """The name and version of weights. Versions are compared only between weights of the same base."""

    version: int = 0  # 0 for the weights that a replica starts with; every weight update raises it
    model: str = ""  # a folder or a hub name
    base: str = ""  # the setting `model`
    #: the folders that have the weights, if `model` is not the only one; a weight comes from the last that has it
    folders: tuple[str, ...] = ()
    mrp_version: int = 0  # the version that MRP came with
    partial: bool = False  # whether `model` may have any of the weights
    abort: bool = False  # whether their update ends running requests; else these finish first

    @property
    def all_folders(self) -> tuple[str, ...]:
        return self.folders or (self.model,)

    def older_than(self, other: Weights) -> bool:
        """Whether `other` is newer. Of two weights of one version, every process takes the same for newer."""
        return self.base == other.base and (self.version, self.model) < (other.version, other.model)

    @property
    def name(self) -> str:
        return self.model.rstrip("/").rpartition("/")[2]


class Resume(Data, frozen=True):
    """The blocks of an answer that other replicas have delivered: their tokens, number and statistics."""

    token_ids: Private[tuple[int, ...]] = ()
    num_blocks: int = 0
    stats: Stats = Stats()
    version: int = 0  # the weights that decoded them, which alone may continue the answer
    num_steps: int = 0  # the number of their steps, if the request wants a step map


class Scoring(Data, frozen=True):
    """What is scored: the log-probabilities of labels at the masked positions of a text.

    The labels are texts or ids. In token ids a masked position is -1.
    """

    labels: Private[tuple[str, ...]] = ()
    label_token_ids: tuple[int, ...] = ()
    mark: Private[str | None] = None  # the text that stands for a masked position; None: it follows the text
    top_n: int = 0  # the number of likeliest tokens, which are scored, too


class PositionScores(Data, frozen=True):
    """The scores of one position."""

    position: int  # the number of tokens before it
    labels: Private[tuple[TopLogprob, ...]]  # in the request's order
    likeliest: Private[tuple[TopLogprob, ...]]


class ReplicaRequest(Data, frozen=True):
    """One validated request. Exactly one of `text`, `token_ids`, `messages` is set."""

    request_id: str
    mode: Mode | ScoreMode
    sampling: SamplingParams
    max_new_tokens: int
    timeout_s: float  # from `arrived` on, time in queues included
    arrived: Arrival  # when the request came to the ingress; times in statistics count from then
    text: Private[str | None] = None
    token_ids: Private[tuple[int, ...] | None] = None
    messages: Private[tuple[Mapping[str, Any], ...] | None] = None
    tools: Private[tuple[Mapping[str, Any], ...]] = ()  # the tools that the prompt shows, as chat templates take them
    think: bool | None = None  # whether the prompt asks for thinking; None leaves it to the chat template
    constraint: Constraint | None = None  # of the whole answer
    scoring: Scoring | None = None  # positions of the prompt are scored, and nothing is decoded
    origin: Origin = Origin()
    weights: Weights | None = None  # the oldest weights that may answer; None: any
    quality: str = ""  # the preset that it named, empty if it named none
    plans: tuple[MeasuredMode, ...] = ()  # those of the preset, of which the engine runs the fastest instead of `mode`
    stop: Private[tuple[str, ...]] = ()
    bad_words: Private[tuple[str, ...]] = ()  # a replica encodes them for `sampling`
    stop_token_ids: frozenset[int] = frozenset()  # added to the checkpoint's eos ids
    ignore_eos: bool = False
    shorten: bool = False  # whether `max_new_tokens` may be more than the model's length leaves
    return_trace: bool = False
    stream_steps: bool = False
    return_token_texts: bool = False
    return_step_map: bool = False  # whether chunks have the steps of their tokens, as with `return_token_texts`
    top_logprobs: int = 0  # the likeliest tokens that are named beside each token, if `return_token_texts`
    sharing: Sharing = Sharing()  # its cache salt contains the key's name unless keys share prefixes
    session: str = ""  # requests of one session should go to the same replica
    resume: Resume = Resume()  # the beginning of the answer, which was already sent
    attempt: int = 0  # the number of earlier attempts
    stream_interval: int = 1  # blocks that may come in one chunk; more than 1 where the client gets a whole answer


#: seconds by which the ingress's time limit is longer than the engine's
_GRACE_S = 5.0


def patience_s(request: ReplicaRequest) -> float:
    """The seconds that an ingress waits for a replica's first item: a little longer than the engine would."""
    return max(0.0, request.timeout_s - request.arrived.waited_s()) + _GRACE_S


def too_late(request: ReplicaRequest) -> DeadlineExceeded:
    """The error for a request whose time limit passed before its first token or before a failover."""
    reason = "no replica continued in time" if request.resume.num_blocks else "nothing was decoded by then"
    return DeadlineExceeded(f"timeout_s is {request.timeout_s}, {reason}", param="timeout_s")


class Ending(Data, frozen=True, tag=3):
    """The end of an answer: its finish reason, token counts and statistics."""

    finish_reason: FinishReason
    prompt_tokens: int
    completion_tokens: int
    stats: Stats
    constraint_met: bool | None = None  # whether the answer satisfies the request's constraint; None without one
    stop_text: Private[str | None] = None  # the text of `stop` that ended the answer, None if none did
    position_scores: Private[tuple[PositionScores, ...]] = ()  # the result of `scoring`
    #: the stop token that ended the answer, with its step, if the request wants a step map
    stop_token: Private[TokenStep | None] = None


class Chunk(Data, frozen=True, tag=2):
    """Finished blocks: the text and tokens they add, the statistics so far, and their history on request.

    The last chunk carries the `ending`. Every other chunk ends where another replica can continue.
    """

    index: int  # of the last block
    text: Private[str]
    token_ids: Private[tuple[int, ...]]
    stats: Stats
    trace: Private[tuple[TraceStep, ...]] = ()
    ending: Ending | None = None
    token_texts: Private[tuple[TokenText, ...]] = ()
    prompt_tokens: int = 0  # the tokens of the whole prompt
    version: int = 0  # the version of the weights that decoded the chunk
    step_map: Private[tuple[TokenStep, ...]] = ()  # the step of each token, on request
    ignored: tuple[str, ...] = ()  # keywords of the constraint that only its compiler found not to be usable


class TraceStep(TypedDict):
    """One step of a block as JSON. Positions are relative to the block. Picks: position, token, confidence.

    `moved`: as of `Step`. Only there if the step inserts or deletes tokens.
    """

    block: int
    kind: StepKind
    revealed: list[tuple[int, int, float]]
    revoked: list[int]
    drafted: list[tuple[int, int, float]]
    accepted: int
    moved: NotRequired[list[int]]


class Progress(Data, frozen=True, tag=1):
    """New steps of the block with this index, for a request with `stream_steps`. The block's chunk comes after them.

    When another replica decodes a block again, its steps begin again at 0.
    """

    index: int
    first: int  # the number of the first of these steps in its block
    steps: Private[tuple[TraceStep, ...]]
    texts: Private[Mapping[int, str]]  # token id -> the token's own text
    prompt_positions: int  # positions at the beginning of the block that hold the prompt
    total_s: float  # seconds since the arrival at the ingress


def mode_of(request: ReplicaRequest, stats: Stats) -> DecodingMode:
    """The mode that decoded an answer with these statistics."""
    return stats.mode or request.mode


class Answer(Data, frozen=True):
    """A whole answer: the text and tokens of all its chunks, in order."""

    text: Private[str]
    token_ids: Private[tuple[int, ...]]
    ending: Ending
    trace: Private[tuple[TraceStep, ...]] = ()
    token_texts: Private[tuple[TokenText, ...]] = ()
    step_map: Private[tuple[TokenStep, ...]] = ()
    ignored: tuple[str, ...] = ()  # as in `Chunk`

    @classmethod
    def from_chunks(cls, chunks: Sequence[Chunk], ending: Ending) -> Answer:
        ignored = dict.fromkeys(name for chunk in chunks for name in chunk.ignored)
        return cls(ending=ending, ignored=(*ignored,), **joined(chunks))


def joined(chunks: Sequence[Chunk]) -> dict[str, Any]:
    """The text, tokens and records of all chunks together, as fields of an `Answer` or of a `Chunk`."""
    lists = ("token_ids", "trace", "token_texts", "step_map")
    parts = {name: tuple(chain.from_iterable(getattr(chunk, name) for chunk in chunks)) for name in lists}
    return {"text": "".join(chunk.text for chunk in chunks), **parts}


class Failure(Data, frozen=True, tag=4):
    """The request failed with `error`, which the ingress sends to the client."""

    error: MrpServeError


class Encoded(Data, frozen=True, tag=5):
    """A prompt as token ids. `text`: the text of a prompt that came as token ids, control tokens included."""

    token_ids: Private[tuple[int, ...]]
    text: Private[str] = ""


#: the stream of a replica; it ends with an `Ending`, by itself or in the last chunk, or with a `Failure`
ReplicaStream = AsyncGenerator[Progress | Chunk | Ending | Failure]
#: the same stream when failures are raised as errors
AnswerStream = AsyncGenerator[Progress | Chunk | Ending]
