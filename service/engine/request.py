"""The input and output of the engine: requests, block events, statistics.

These are frozen values, used from the scheduler to the API.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

from msgspec.structs import replace

from service.data import Data, Private
from service.decode.block import PositionLogprobs, Step
from service.decode.block_grammar import CompiledGrammar
from service.decode.mode import DecodingMode, ScoreMode
from service.decode.modes import Mode, Static
from service.errors import InvalidRequest, MrpServeError
from service.fair_queue import DEFAULT_PRIORITY, HIGHEST_PRIORITY, LOWEST_PRIORITY

FinishReason = Literal["stop", "length", "timeout", "abort"]
ForwardKind = Literal["prefill", "denoise", "verify", "commit", "mrp"]

if TYPE_CHECKING:
    AnyMode = DecodingMode
else:
    AnyMode = Mode | ScoreMode  # what messages are decoded to

MAX_SEED = 2**63 - 1


class SamplingParams(Data, frozen=True):
    """The sampling of a token. Temperature 0 is greedy; `top_k` 0 and `top_p` 1 filter nothing.

    The noise depends only on (seed, absolute position, tokens revealed in the block, token id).
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.temperature <= 100:
            raise InvalidRequest(f"temperature is {self.temperature}, allowed are 0 to 100", param="temperature")
        if not 0 < self.top_p <= 1:
            raise InvalidRequest(f"top_p is {self.top_p}, allowed is 0 < top_p <= 1", param="top_p")
        if self.top_k < 0:
            raise InvalidRequest(f"top_k is {self.top_k}, allowed is 0 (off) or more", param="top_k")
        if not 0 <= self.seed <= MAX_SEED:
            raise InvalidRequest(f"seed is {self.seed}, allowed are 0 to {MAX_SEED}", param="seed")

    @property
    def filtered(self) -> bool:
        """Whether top-k or top-p leave tokens out."""
        return bool(self.top_k) or self.top_p < 1


class LogprobsRequest(NamedTuple):
    """The log-probabilities wanted of each masked position, at the request's temperature.

    `top_n`: the number of likeliest tokens. `token_ids`: further tokens.
    """

    top_n: int = 0
    token_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One prompt to continue. `timeout_s` counts from submission; None: no limit.

    `priority` (0 is served first), `tenant` and `weight` order waiting requests. `waited_s`: its wait before the
    submission. Only requests with the same `cache_salt` share pages. `num_continued`: the last tokens of the prompt
    that another engine has decoded for this request. `report_steps`: whether `Engine.progress` tells its steps.
    `keep_steps`: whether its events have them. `together`: so many events are handed on at once, the last one at once,
    for callers who wait for the last one anyway. `logprobs`: the log-probabilities that its picks have.
    `grammar`: the grammar of the answer; its end tokens must be stop tokens of the request.
    `version`: the version of the weights that must decode it, as they decoded the tokens it continues; None: any.
    `delay_s`: seconds since the submission that its grammar took.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    params: AnyMode = field(default_factory=Static)
    sampling: SamplingParams = field(default_factory=SamplingParams)
    max_new_tokens: int = 256
    stop_token_ids: frozenset[int] = frozenset()
    timeout_s: float | None = None
    priority: int = DEFAULT_PRIORITY
    tenant: str = ""
    weight: float = 1.0
    waited_s: float = 0.0
    cache_salt: str = ""
    num_continued: int = 0
    report_steps: bool = False
    keep_steps: bool = True
    together: int = 1
    logprobs: LogprobsRequest | None = None
    grammar: CompiledGrammar | None = field(default=None, repr=False, compare=False)
    version: int | None = None
    delay_s: float = 0.0

    def __post_init__(self) -> None:
        if not HIGHEST_PRIORITY <= self.priority <= LOWEST_PRIORITY:
            raise InvalidRequest(
                f"priority is {self.priority}, allowed are {HIGHEST_PRIORITY} (soonest) to {LOWEST_PRIORITY}",
                param="priority",
            )

    def logprobs_of(self, top_n: int) -> LogprobsRequest | None:
        """The log-probabilities wanted of each position, with at least the `top_n` likeliest tokens."""
        if not top_n:
            return self.logprobs
        logprobs = self.logprobs or LogprobsRequest()
        return logprobs._replace(top_n=max(logprobs.top_n, top_n))


class ForwardCounts(Data, frozen=True):
    """The number of forwards of each kind in which a request had a row.

    A commit that shares a forward with a denoise or verify row of its own request is not counted.
    """

    prefill: int = 0
    denoise: int = 0
    verify: int = 0
    commit: int = 0
    mrp: int = 0

    def __add__(self, other: ForwardCounts) -> ForwardCounts:
        return ForwardCounts(
            self.prefill + other.prefill,
            self.denoise + other.denoise,
            self.verify + other.verify,
            self.commit + other.commit,
            self.mrp + other.mrp,
        )


class Stats(Data, frozen=True):
    """The statistics of one request so far. Times are in seconds since submission.

    `mrp_steps`: as requested, or as chosen by `auto`; None for modes that have none.
    `cached_tokens`: tokens of the prompt that were in the prefix cache.
    `forced_tokens`: tokens that the request's grammar forced, for which no forward was needed.
    `prefill_s`: when the last whole block of the prompt was stored; None if the prompt has none.
    """

    forwards: ForwardCounts = ForwardCounts()
    decoded_tokens: int = 0
    drafts_proposed: int = 0
    drafts_accepted: int = 0
    remasked: int = 0
    forced_tokens: int = 0
    mrp_steps: int | None = None
    cached_tokens: int = 0
    queue_s: float = 0.0
    prefill_s: float | None = None
    first_block_s: float | None = None
    total_s: float = 0.0

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
        """These statistics with times that count from `seconds` before submission."""
        prefill, first = self.prefill_s, self.first_block_s
        return replace(
            self,
            queue_s=seconds + self.queue_s,
            prefill_s=None if prefill is None else seconds + prefill,
            first_block_s=None if first is None else seconds + first,
            total_s=seconds + self.total_s,
        )

    def continued(self, rest: Stats) -> Stats:
        """These statistics with those of the rest of the answer. Times of both must count from the same moment."""
        return Stats(
            forwards=self.forwards + rest.forwards,
            decoded_tokens=self.decoded_tokens + rest.decoded_tokens,
            drafts_proposed=self.drafts_proposed + rest.drafts_proposed,
            drafts_accepted=self.drafts_accepted + rest.drafts_accepted,
            remasked=self.remasked + rest.remasked,
            forced_tokens=self.forced_tokens + rest.forced_tokens,
            mrp_steps=rest.mrp_steps,
            cached_tokens=self.cached_tokens,
            queue_s=self.queue_s,
            prefill_s=self.prefill_s,
            first_block_s=self.first_block_s,
            total_s=rest.total_s,
        )


class BlockEvent(Data, frozen=True, tag=1):
    """One finished block, or the end of a request.

    `token_ids`: the completion's new tokens, without a stop token. The tokens of all events together are the
    completion. `index`: 0 for the first generated block. `finish_reason`: set on a request's last event. `steps`: how
    the block was decoded, if the request keeps them. `constraint_met`: on the last event, whether the answer satisfies
    the request's grammar; None without a grammar. `position_logprobs`: for a request of `ScoreMode`, the
    log-probabilities at each masked position (the number of tokens before it). `error`: why the engine ended the
    request (the finish reason is then "abort"), else None. `version`: the version of the weights that decoded it.
    """

    request_id: str
    index: int
    token_ids: tuple[int, ...]
    stats: Stats
    finish_reason: FinishReason | None = None
    steps: Private[tuple[Step, ...]] = ()
    error: MrpServeError | None = None
    constraint_met: bool | None = None
    position_logprobs: Private[tuple[tuple[int, PositionLogprobs], ...]] = ()
    version: int = 0


class BlockProgress(Data, frozen=True, tag=2):
    """New steps of a block, before or with its `BlockEvent`, for a request with `report_steps`.

    `first`: the number of the first of these steps in its block. `total_s`: seconds since submission.
    """

    request_id: str
    index: int
    first: int
    steps: Private[tuple[Step, ...]]
    total_s: float = 0.0


class RequestFailed(Data, frozen=True, tag=3):
    """The engine ended a request, or has not taken it."""

    request_id: str
    error: MrpServeError


@dataclass(frozen=True, slots=True, repr=False)
class Completion:
    """A whole answer, as `Engine.generate` returns it. `service.text.TextCodec` makes text of its tokens.

    `constraint_met`: whether it satisfies the request's grammar; None without a grammar.
    """

    request_id: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    stats: Stats
    blocks: tuple[BlockEvent, ...] = ()
    constraint_met: bool | None = None

    def __repr__(self) -> str:
        speed = f"{self.stats.tokens_per_forward:.2f} tokens a forward"
        return f"Completion({self.request_id!r}, {len(self.token_ids)} tokens, {self.finish_reason!r}, {speed})"
