"""The answers of POST /generate and of the health routes, and the statistics that the answers of every API have."""

from collections.abc import Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Any, Literal, NotRequired, TypeAlias, get_type_hints

from msgspec.structs import asdict
from pydantic import WithJsonSchema
from typing_extensions import TypedDict

from service.decode.knobs import KnobValue
from service.engine.request import FinishReason, ForwardCounts, Stats
from service.messages.wire import Answer, Chunk, Ending, ReplicaRequest, TraceStep, mode_of
from service.quality.schema import knobs_of

#: no answer ends with `abort`: its client has left
EndReason = Annotated[FinishReason, WithJsonSchema({"type": "string", "enum": ["stop", "length", "timeout"]})]


#: the statistics that answers do not have
HIDDEN = frozenset({"decoded_tokens", "prefill_s", "mode"})
_STATS = [name for name in Stats.__struct_fields__ if name not in HIDDEN]
#: the same as answers name them; times are in milliseconds there
_SHOWN = [name[:-1] + "ms" if name.endswith("_s") else name for name in _STATS]
_TIMES = [name for name in _SHOWN if name.endswith("_ms")]
_values_of = attrgetter(*_STATS)

if TYPE_CHECKING:
    AnswerStats: TypeAlias = dict[str, Any]
    DecodedStats: TypeAlias = dict[str, Any]
else:
    _FORWARDS = TypedDict("ForwardsByKind", dict.fromkeys(ForwardCounts.__struct_fields__, int))
    _FORWARDS.__doc__ = ForwardCounts.__doc__
    _NUMBERS = {"tokens_per_forward": float, "tokens_per_forward_total": float}
    _NUMBERS |= {key: get_type_hints(Stats)[name] for key, name in zip(_SHOWN, _STATS, strict=True)}
    _NUMBERS |= {"forwards": _FORWARDS}
    AnswerStats = TypedDict("AnswerStats", _NUMBERS)
    AnswerStats.__doc__ = """How the answer was decoded. `mrp_steps`: as requested, or as chosen by `auto`.

    `forced_tokens`: tokens that a constraint forced, for which no forward was needed.

    `weight_version`: the version of the weights that answered. `mrp_version`: the version that MRP came with, null
    without MRP. If it is lower, drafts come from an older module.

    Times count from the arrival of the request at the ingress.
    """
    _END = {"finish_reason": EndReason, "mode": str, "knobs": dict[str, KnobValue], "seed": int}
    DecodedStats = TypedDict("DecodedStats", _NUMBERS | _END)
    DecodedStats.__doc__ = "How an answer of another API was decoded, with this service's finish reason."


def stats_of(stats: Stats) -> AnswerStats:
    """How an answer was decoded."""
    answer: dict[str, Any] = {
        "tokens_per_forward": round(stats.tokens_per_forward, 4),
        "tokens_per_forward_total": round(stats.tokens_per_forward_total, 4),
    }
    answer.update(zip(_SHOWN, _values_of(stats), strict=True))
    answer["forwards"] = asdict(stats.forwards)
    for name in _TIMES:
        if (seconds := answer[name]) is not None:
            answer[name] = milliseconds(seconds)
    return answer


def milliseconds(seconds: float) -> float:
    """Seconds as milliseconds with three decimals, the form of statistics and logs."""
    return round(seconds * 1000, 3)


class Usage(TypedDict):
    """Token counts as OpenAI names them."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


def usage_of(prompt: int, completion: int) -> Usage:
    """The token counts of an answer."""
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


class ChoiceIndex(TypedDict):
    """The number of an answer. Only there if the request has more than one, by `n`."""

    choice: NotRequired[int]


class StepFrame(TraceStep, ChoiceIndex):
    """A frame of a stream with `stream_steps`: one decision, before the frame of its block.

    `step`: its number in the block. A number that comes again replaces that step and those after it: another replica
    decodes the block again. `texts`: the text of each token. `prompt_positions`: positions of the block that the
    prompt fills. `ms`: when it was made, counted from the arrival of the request at the ingress.
    """

    step: int
    texts: dict[int, str]
    prompt_positions: int
    ms: float


class Traced(TypedDict):
    """The decisions of decoding, with `return_trace`. With `return_step_map`, a number for each of `token_ids`.

    `step_map`: the number of the step that revealed the token, over the whole answer, from 1. `speculative` counts the
    steps of the mode that it verifies. `token_logprobs`: the token's log-probability at that step.
    """

    trace: NotRequired[Sequence[TraceStep]]
    step_map: NotRequired[Sequence[int]]
    token_logprobs: NotRequired[Sequence[float]]


def traced(request: ReplicaRequest, part: Answer | Chunk) -> Traced:
    """The record of decoding that a request wants."""
    record: Traced = {"trace": part.trace} if request.return_trace else {}
    if request.return_step_map:
        record["step_map"] = [token.step for token in part.step_map]
        record["token_logprobs"] = [token.logprob for token in part.step_map]
    return record


class StopToken(TypedDict):
    """The stop token that ended the answer, which is not among `token_ids`, with its step and log-probability."""

    token_id: int
    step: int
    logprob: float


class Met(TypedDict):
    """Whether the answer satisfies the request's constraint; only there if it has one.

    `stop_token`: only there with `return_step_map`; null if no stop token ended the answer.
    """

    constraint_met: NotRequired[bool | None]
    stop_token: NotRequired[StopToken | None]


def met_of(request: ReplicaRequest, ending: Ending) -> Met:
    """The fields of an answer's end that only some requests want."""
    met: Met = {} if request.constraint is None else {"constraint_met": ending.constraint_met}
    if request.return_step_map:
        token = ending.stop_token
        met["stop_token"] = token and {"token_id": token.token, "step": token.step, "logprob": token.logprob}
    return met


class Decoded(Met):
    """The fields that this service adds to the end of another API's answer."""

    stats: DecodedStats


def decoded_of(request: ReplicaRequest, ending: Ending) -> Decoded:
    """How an answer of another API was decoded, by fields that this API does not have."""
    mode = mode_of(request, ending.stats)
    stats: DecodedStats = {
        "finish_reason": ending.finish_reason,
        "mode": mode.name,
        "knobs": knobs_of(mode),
        "seed": request.sampling.seed,
        **stats_of(ending.stats),
    }
    return {"stats": stats, **met_of(request, ending)}


class Done(ChoiceIndex, Met):
    """The last frame of a stream: the answer without the fields that earlier frames had."""

    id: str
    model: str
    finish_reason: EndReason
    mode: str
    knobs: dict[str, KnobValue]
    seed: int
    usage: Usage
    stats: AnswerStats


class GenerateAnswer(Done, Traced):
    """The answer of POST /generate."""

    text: str
    token_ids: Sequence[int]


class GenerateAnswers(TypedDict):
    """The answers of POST /generate with `n` above 1. `usage` counts the prompt once."""

    choices: list[GenerateAnswer]
    usage: Usage


class BlockFrame(Traced, ChoiceIndex):
    """A frame of a stream: one finished block."""

    index: int
    text: str
    token_ids: Sequence[int]
    stats: AnswerStats


class Live(TypedDict):
    """The answer of GET /live."""

    status: Literal["ok"]


class Version(TypedDict):
    """The answer of GET /version."""

    version: str


class Health(TypedDict):
    """The answer of GET /health and GET /ping."""

    status: Literal["ok"]
    replicas_ready: int
