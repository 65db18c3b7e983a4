"""The input and output of the engine: requests and their check, block events, statistics. All values are frozen."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import add
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec
from msgspec.structs import astuple, replace

from service.decode.block import MASKED, PositionLogprobs, Step
from service.decode.canvas import CompiledGrammar
from service.decode.knobs import AUTO
from service.decode.mode import DecodingMode, ScoreMode
from service.decode.modes import Mode, Static
from service.decode.registry import leaves_drafts_open, served_without_mrp
from service.decode.step_map import StepMap, TokenStep
from service.errors import InvalidRequest, ModeNotAvailable, MrpServeError, PromptTooLong
from service.fair_queue import DEFAULT_PRIORITY, HIGHEST_PRIORITY, LOWEST_PRIORITY
from service.ipc.data import Data, Private

FinishReason = Literal["stop", "length", "timeout", "abort"]
ForwardKind = Literal["prefill", "denoise", "verify", "commit", "mrp"]

if TYPE_CHECKING:
    from service.model.config import ModelConfig

    AnyMode = DecodingMode
else:
    AnyMode = Mode | ScoreMode  # the types to which a message is decoded

MAX_SEED = 2**63 - 1
#: the bound of a token's `logit_bias`, OpenAI's
MAX_LOGIT_BIAS = 100.0
#: sampling parameter -> its least and its highest value; `min_p` and penalties as in vLLM, whose `repetition_penalty`
#: may be any number above 0
PARAMETER_RANGES: Mapping[str, tuple[float, float]] = {
    "min_p": (0.0, 1.0),
    "repetition_penalty": (0.01, 100.0),
    "frequency_penalty": (-2.0, 2.0),
    "presence_penalty": (-2.0, 2.0),
}


class SamplingParams(Data, frozen=True):
    """The sampling of a token, with vLLM's names. `docs/sampling.md` defines each parameter for masked positions.

    Temperature 0 is greedy; `top_k` 0, `top_p` 1 and `min_p` 0 filter nothing. The noise depends only on (seed,
    absolute position, tokens revealed in the block, token id). `logit_bias`: token id -> number added to its logit.
    `min_tokens`: the answer's first positions at which no stop token may stand. `bad_words_token_ids`: the words that
    the answer may not contain, as token ids.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: Private[dict[int, float]] = msgspec.field(default_factory=dict)
    min_tokens: int = 0
    bad_words_token_ids: Private[tuple[tuple[int, ...], ...]] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.temperature <= 100:
            raise InvalidRequest(f"temperature is {self.temperature}, allowed are 0 to 100", param="temperature")
        if not 0 < self.top_p <= 1:
            raise InvalidRequest(f"top_p is {self.top_p}, allowed is 0 < top_p <= 1", param="top_p")
        if self.top_k < 0:
            raise InvalidRequest(f"top_k is {self.top_k}, allowed is 0 (off) or more", param="top_k")
        if not 0 <= self.seed <= MAX_SEED:
            raise InvalidRequest(f"seed is {self.seed}, allowed are 0 to {MAX_SEED}", param="seed")
        if self.min_p or self.adjusts_logits:
            self._check_adjustments()

    @property
    def filtered(self) -> bool:
        return bool(self.top_k) or self.top_p < 1 or self.min_p > 0

    @property
    def draws_filtered(self) -> bool:
        """Whether noise decides among the tokens of a filter."""
        return self.temperature > 0 and self.filtered

    @property
    def adjusts_logits(self) -> bool:
        return self.repetition_penalty != 1 or any(
            (self.frequency_penalty, self.presence_penalty, self.logit_bias, self.min_tokens, self.bad_words_token_ids)
        )

    def _check_adjustments(self) -> None:
        for name, (least, most) in PARAMETER_RANGES.items():
            if not least <= (value := getattr(self, name)) <= most:
                raise InvalidRequest(f"{name} is {value}, allowed are {least} to {most}", param=name)
        if self.min_tokens < 0:
            raise InvalidRequest(f"min_tokens is {self.min_tokens}, allowed is 0 (off) or more", param="min_tokens")
        for token, bias in self.logit_bias.items():
            if not -MAX_LOGIT_BIAS <= bias <= MAX_LOGIT_BIAS:
                raise InvalidRequest(
                    f"logit_bias of token {token} is {bias}, allowed are {-MAX_LOGIT_BIAS} to {MAX_LOGIT_BIAS}",
                    param="logit_bias",
                )
        if not all(self.bad_words_token_ids):
            raise InvalidRequest("bad_words has a word without tokens", param="bad_words")


class LogprobsRequest(NamedTuple):
    """The log-probabilities wanted of each masked position: of the `top_n` top tokens, and of `token_ids`."""

    top_n: int = 0
    token_ids: tuple[int, ...] = ()


class Sharing(Data, frozen=True):
    """How a request shares an engine with others: its place in the queue and the prompts it may share."""

    tenant: str = ""  # the name of its API key; tenants get their shares of every step
    tenant_share: float = 1.0  # relative to the shares of other tenants
    priority: int = DEFAULT_PRIORITY  # 0 is served first
    cache_salt: str = ""  # only requests with the same salt share pages

    def __post_init__(self) -> None:
        if not HIGHEST_PRIORITY <= self.priority <= LOWEST_PRIORITY:
            raise InvalidRequest(
                f"priority is {self.priority}, allowed are {HIGHEST_PRIORITY} (soonest) to {LOWEST_PRIORITY}",
                param="priority",
            )


class MeasuredMode(Data, frozen=True):
    """A plan of a preset. `tokens_per_forward`: its tokens per backbone forward, measured for the checkpoint."""

    mode: AnyMode
    tokens_per_forward: float = 1.0


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One prompt to continue.

    `plans`: the modes of a preset. The engine starts the request with the one that is the fastest now, instead of
    `mode`.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    mode: AnyMode = field(default_factory=Static)
    plans: tuple[MeasuredMode, ...] = field(default=(), kw_only=True)
    sampling: SamplingParams = field(default_factory=SamplingParams)
    max_new_tokens: int = 256
    stop_token_ids: frozenset[int] = frozenset()
    timeout_s: float | None = None  # from submission; None: no limit
    sharing: Sharing = field(default_factory=Sharing)
    waited_s: float = 0.0  # seconds of waiting before the submission
    num_continued: int = 0  # tokens at the prompt's end that another engine has decoded for this request
    report_steps: bool = False  # whether `Engine.progress` has its steps
    keep_steps: bool = True  # whether its events have its steps
    #: the events that are delivered at once, for callers who wait for the last event anyway
    stream_interval: int = 1
    logprobs: LogprobsRequest | None = None  # the log-probabilities that its picks have
    #: the grammar of the answer; its end tokens must be stop tokens of the request
    grammar: CompiledGrammar | None = field(default=None, repr=False, compare=False)
    #: the version of the weights that must decode it, since it decoded the tokens it continues; None: any
    version: int | None = None
    delay_s: float = 0.0  # seconds between submission and enqueueing, in which its grammar was compiled

    def logprobs_with(self, top_n: int) -> LogprobsRequest:
        logprobs = self.logprobs or LogprobsRequest()
        return logprobs._replace(top_n=max(logprobs.top_n, top_n))


class ForwardCounts(Data, frozen=True):
    """The forwards of each kind in which a request had a row. A commit beside its own other rows is not counted."""

    prefill: int = 0
    denoise: int = 0
    verify: int = 0
    commit: int = 0
    mrp: int = 0

    def __add__(self, other: ForwardCounts) -> ForwardCounts:
        return ForwardCounts(*map(add, astuple(self), astuple(other)))


class Stats(Data, frozen=True):
    """The statistics of one request so far, as in every answer's `stats`. Times are in seconds since submission."""

    forwards: ForwardCounts = ForwardCounts()
    decoded_tokens: int = 0
    drafts_proposed: int = 0
    drafts_accepted: int = 0
    remasked: int = 0
    forced_tokens: int = 0  # tokens that the request's grammar forced, for which no forward was needed
    #: the MRP forwards for drafts, requested or chosen by `auto`; None for modes without them
    mrp_steps: int | None = None
    cached_tokens: int = 0  # tokens of the prompt that were in the prefix cache
    num_preemptions: int = 0  # how often the request lost its KV pages to others, and stored its blocks again
    queue_s: float = 0.0
    #: when the last whole block of the prompt was stored; None if the prompt has no whole block
    prefill_s: float | None = None
    first_block_s: float | None = None
    total_s: float = 0.0
    weight_version: int = 0  # the version of the weights
    mrp_version: int | None = None  # the version of MRP's weights; None if there is no MRP
    mode: AnyMode | None = None  # the mode that was chosen of a request's `plans`; None for a request without

    @property
    def tokens_per_forward(self) -> float:
        """Tokens decoded (a stop token included) per denoise or verify forward, as in the papers."""
        return self.decoded_tokens / max(1, self.forwards.denoise + self.forwards.verify)

    @property
    def tokens_per_forward_total(self) -> float:
        """Tokens decoded per backbone forward of any kind, prefill and commit included."""
        backbone = self.forwards.prefill + self.forwards.denoise + self.forwards.verify + self.forwards.commit
        return self.decoded_tokens / max(1, backbone)

    def later_by(self, seconds: float) -> Stats:
        times = {name: getattr(self, name) for name in self.__struct_fields__ if name.endswith("_s")}
        return replace(self, **{name: seconds + time for name, time in times.items() if time is not None})

    def continued(self, stats: Stats) -> Stats:
        """The statistics of an answer of two parts. `stats`: the second part's, whose times count from the same moment.

        `mrp_steps` and `total_s` are the second part's, counts are added, all other values are the first part's.
        """
        sums = {name: getattr(self, name) + getattr(stats, name) for name in _ADDED}
        return replace(self, mrp_steps=stats.mrp_steps, total_s=stats.total_s, **sums)


#: the statistics that are sums over the parts of an answer
_ADDED = (
    "forwards", "decoded_tokens", "drafts_proposed", "drafts_accepted", "remasked", "forced_tokens", "num_preemptions",
)  # fmt: skip


class BlockEvent(Data, frozen=True, tag=1):
    """One finished block, or the end of a request."""

    request_id: str
    index: int  # 0 for the first generated block
    #: the completion's new tokens, without a stop token; the tokens of all events together are the completion
    token_ids: tuple[int, ...]
    stats: Stats
    finish_reason: FinishReason | None = None  # set on a request's last event
    steps: Private[tuple[Step, ...]] = ()  # the block's decoding steps, if the request keeps them
    error: MrpServeError | None = None  # why the engine ended the request; the finish reason is then "abort"
    #: whether the answer satisfies the request's grammar; None before the last event and without a grammar
    constraint_met: bool | None = None
    #: the log-probabilities at each masked position (the number of tokens before it) of a request of `ScoreMode`
    position_logprobs: Private[tuple[tuple[int, PositionLogprobs], ...]] = ()
    version: int = 0  # the version of the weights that decoded it


class BlockProgress(Data, frozen=True, tag=2):
    """New steps of a block, before or with its `BlockEvent`. `first`: the number of the first of them in its block."""

    request_id: str
    index: int
    first: int
    steps: Private[tuple[Step, ...]]
    total_s: float = 0.0


class RequestFailed(Data, frozen=True, tag=3):
    """The engine ended a request, or refused it."""

    request_id: str
    error: MrpServeError


@dataclass(frozen=True, slots=True, repr=False)
class Completion:
    """A whole answer, as `Engine.generate` returns it. `constraint_met`: whether it satisfies its grammar, if any."""

    request_id: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    stats: Stats
    blocks: tuple[BlockEvent, ...] = ()
    constraint_met: bool | None = None

    @property
    def step_map(self) -> tuple[TokenStep, ...]:
        """The step of each token, and of the stop token that ended the answer. Empty if its events have no steps."""
        counted = StepMap()
        tokens = [token for block in self.blocks for token in counted.add(block.steps)]
        return tuple(tokens[: len(self.token_ids) + (self.finish_reason == "stop")])

    def __repr__(self) -> str:
        speed = f"{self.stats.tokens_per_forward:.2f} tokens a forward"
        return f"Completion({self.request_id!r}, {len(self.token_ids)} tokens, {self.finish_reason!r}, {speed})"


def validate(
    request: GenerationRequest, model: ModelConfig, max_model_len: int, *, deterministic: bool = False
) -> None:
    """InvalidRequest if an engine cannot serve a request. `deterministic`: no answer may depend on the load."""
    for plan in request.plans[1:]:
        validate(dataclasses.replace(request, mode=plan.mode, plans=()), model, max_model_len)
    if request.mode.needs_mrp and model.mrp is None:
        served = ", ".join(served_without_mrp(causal=model.causal))
        raise ModeNotAvailable(
            f"mode {request.mode.name!r} needs MRP and this checkpoint has none; it serves {served}", param="mode"
        )
    if model.causal and not request.mode.served_in_order:
        served = ", ".join(served_without_mrp(causal=True))
        raise ModeNotAvailable(
            f"mode {request.mode.name!r} changes tokens by those after them, which this causal model does not see; it "
            f"serves {served}",
            param="mode",
        )
    request.mode.check(model.block_size)
    if request.mode.drafts_decide:
        _check_drafts(request, deterministic=deterministic)
    if request.sampling.adjusts_logits:
        _check_tokens(request, model)
    scored = isinstance(request.mode, ScoreMode)
    if scored and model.shifted and request.prompt_token_ids[:1] == (MASKED,):
        raise InvalidRequest(
            f"the first token of a text cannot be scored: in {model.family} the output of the token before predicts it",
            param="prompt",
        )
    prompt = request.prompt_token_ids
    _check_prompt(tuple(token for token in prompt if token != MASKED) if scored else prompt, model, scored=scored)
    if scored and MASKED not in prompt:
        raise InvalidRequest("the text has no masked position to be scored", param="prompt")
    if request.max_new_tokens < 1 and not scored:
        raise InvalidRequest(
            f"max_new_tokens is {request.max_new_tokens}, at least 1 is needed", param="max_new_tokens"
        )
    total = len(prompt) + request.max_new_tokens
    if total > max_model_len:
        excess = f"{len(prompt)} prompt tokens and max_new_tokens {request.max_new_tokens} are {total} tokens"
        raise PromptTooLong.over(max_model_len, excess, param="max_new_tokens")


def _check_drafts(request: GenerationRequest, *, deterministic: bool) -> None:
    """InvalidRequest if the request does not define which drafts are accepted, where drafts decide."""
    sampling = request.sampling
    if sampling.temperature and sampling.filtered:
        raise InvalidRequest(
            f"top_p is {sampling.top_p}, top_k {sampling.top_k} and min_p {sampling.min_p}, allowed with a margin are "
            "top_p 1, top_k 0 and min_p 0, or temperature 0: the margin is between the two likeliest tokens, of which "
            "the other fields may leave one out",
            param="margin",
        )
    if deterministic and leaves_drafts_open(request.mode):
        raise InvalidRequest(
            f"mrp_steps is {AUTO!r}, allowed with a margin is a number: this server is deterministic, and the load "
            "would choose the drafts, and they the answer",
            param="mrp_steps",
        )


def _check_tokens(request: GenerationRequest, model: ModelConfig) -> None:
    """InvalidRequest if a token of the sampling parameters is not in the vocabulary, or if they forbid all tokens."""
    sampling, mask = request.sampling, model.mask_token_id
    words = {token for word in sampling.bad_words_token_ids for token in word}
    for param, tokens in (("logit_bias", sampling.logit_bias), ("bad_words", words)):
        bad = next((token for token in tokens if not 0 <= token < model.vocab_size or token == mask), None)
        if bad is not None:
            raise InvalidRequest(
                f"{param} has token {bad}, allowed are 0 to {model.vocab_size - 1} without the mask token {mask}",
                param=param,
            )
    forbidden = words.union(model.edit_token_ids or (), request.stop_token_ids if sampling.min_tokens else ())
    if all(token in forbidden for token in range(model.vocab_size) if token != mask):
        raise InvalidRequest("bad_words and min_tokens leave no token of the vocabulary", param="bad_words")


def check_text(tokens: Sequence[int], model: ModelConfig, param: str = "prompt") -> None:
    """InvalidRequest in words about a text, if its tokenizer gave it a token that the model does not take.

    `param`: the field with the text.
    """
    bad = next((token for token in tokens if token >= model.vocab_size or token == model.mask_token_id), None)
    if bad is not None:
        allowed = f"the model takes tokens 0 to {model.vocab_size - 1} without the mask token {model.mask_token_id}"
        raise InvalidRequest(f"{param} has text that is token {bad} of the tokenizer, {allowed}", param=param)


def _check_prompt(prompt: tuple[int, ...], model: ModelConfig, *, scored: bool) -> None:
    if not prompt and not scored:
        raise InvalidRequest("the prompt is empty, at least one token is needed", param="prompt")
    bad = next((token for token in prompt if not 0 <= token < model.vocab_size), None)
    if bad is not None:
        raise InvalidRequest(
            f"prompt_token_ids has {bad}, allowed are 0 to {model.vocab_size - 1}", param="prompt_token_ids"
        )
    if model.mask_token_id in prompt:
        raise InvalidRequest(
            f"prompt_token_ids has the mask token {model.mask_token_id}, which prompts must not contain",
            param="prompt_token_ids",
        )
